"""Config: an immutable mapping from knob to value."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping

import pytest

from autotune import Config


def test_a_config_reads_like_a_mapping() -> None:
    config = Config({"batch_size": 64, "precision": "bf16"})
    assert isinstance(config, Mapping)
    assert config["batch_size"] == 64
    assert config.get("workers", 4) == 4
    assert dict(config) == {"batch_size": 64, "precision": "bf16"}
    assert len(config) == 2
    assert "precision" in config


def test_a_missing_knob_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="compile"):
        Config({"batch_size": 64})["compile"]


def test_equal_configs_are_equal_and_hash_alike_in_any_order() -> None:
    one = Config({"batch_size": 64, "flush_denormal": True})
    other = Config({"flush_denormal": True, "batch_size": 64})
    assert one == other
    assert len({one, other}) == 1


@pytest.mark.parametrize(
    "other",
    [
        Config({"batch_size": 128}),
        Config({"batch_size": 64, "flush_denormal": True}),
        Config(),
        {"batch_size": 64},
        None,
    ],
)
def test_other_values_other_knobs_and_other_types_are_not_equal(other: object) -> None:
    assert Config({"batch_size": 64}) != other


def test_a_config_cannot_be_reassigned() -> None:
    config = Config({"batch_size": 64})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.values_by_knob = {}  # type: ignore[misc]
    with pytest.raises(TypeError):
        config["batch_size"] = 128  # type: ignore[index]


def test_a_config_does_not_follow_the_dict_it_was_made_from() -> None:
    source: dict[str, bool | int | float | str] = {"batch_size": 64}
    config = Config(source)
    source["batch_size"] = 128
    assert config["batch_size"] == 64


def test_replace_returns_a_changed_copy() -> None:
    config = Config({"batch_size": 64, "workers": 0})
    changed = config.replace(workers=2, flush_denormal=True)
    assert dict(changed) == {"batch_size": 64, "workers": 2, "flush_denormal": True}
    assert dict(config) == {"batch_size": 64, "workers": 0}


def test_changes_are_the_differing_and_the_added_knobs_with_the_value_here() -> None:
    baseline = Config({"batch_size": 64, "workers": 0})
    config = Config({"batch_size": 64, "workers": 2, "precision": "bf16"})
    assert config.changes_from(baseline) == {"workers": 2, "precision": "bf16"}
    assert config.changes_from(config) == {}


def test_a_config_reads_as_knob_equals_value() -> None:
    assert str(Config({"batch_size": 64, "precision": "bf16"})) == "batch_size=64 precision=bf16"
    assert not str(Config())


def test_a_config_survives_pickling_on_its_way_to_a_worker() -> None:
    config = Config({"batch_size": 64, "flush_denormal": True})
    assert pickle.loads(pickle.dumps(config)) == config
