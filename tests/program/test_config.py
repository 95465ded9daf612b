"""Config: an immutable mapping from knob to value. Domain: the candidate values of one knob."""

import dataclasses
import pickle
from collections.abc import Mapping

import pytest

from autotune import Config
from autotune.program.config import KnobValue
from autotune.program.domain import Domain


def test_a_config_is_a_mapping_that_cannot_be_changed() -> None:
    source: dict[str, KnobValue] = {"batch_size": 64, "precision": "bf16"}
    config = Config(source)
    source["batch_size"] = 128
    assert isinstance(config, Mapping)
    assert dict(config) == {"batch_size": 64, "precision": "bf16"}
    assert str(config) == "batch_size=64 precision=bf16"
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(KeyError, match="compile"):
        config["compile"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.values_by_knob = {}  # type: ignore[misc]
    with pytest.raises(TypeError):
        config["batch_size"] = 128  # type: ignore[index]


def test_equal_configs_are_equal_and_hash_alike_in_any_order_and_others_are_not() -> None:
    one = Config({"batch_size": 64, "flush_denormal": True})
    assert len({one, Config({"flush_denormal": True, "batch_size": 64})}) == 1
    for other in (Config({**one, "batch_size": 128}), Config({"batch_size": 64}), dict(one), None):
        assert one != other


def test_a_domain_keeps_numbers_sorted_and_puts_other_values_first() -> None:
    assert Domain((0, 2, 4)).including(2).values == (0, 2, 4)
    assert Domain((0.1, 0.5)).including(0.3).values == (0.1, 0.3, 0.5)
    assert Domain(("bf16",)).including("fp32").values == ("fp32", "bf16")
    assert Domain((True,)).including(False).values == (False, True)
    assert Domain((True, 1)).values == (True, 1), "two values"
    with pytest.raises(ValueError, match="at least one value"):
        Domain(())
    with pytest.raises(ValueError, match=r"once, got \(2, 4, 2\)"):
        Domain((2, 4, 2))
