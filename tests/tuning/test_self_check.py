"""What is done with a config that trains something else, over whole searches in virtual time."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.measurement.interval import Interval
from autotune.measurement.learning.training_trace import Sameness, TrainingTrace
from autotune.program.config import Config, KnobValue
from autotune.program.may_change import MayChange
from autotune.results.data.result import as_data
from autotune.results.finding import Finding
from autotune.results.result import SearchResult
from autotune.tuning.checking.self_check import SelfCheck, by_design
from autotune.tuning.plan import Plan
from tests.made import A100, make_hardware, make_profile, make_space
from tests.scripted import Script, Searched, begin
from tests.tuning.watched import told

KNOBS: dict[str, tuple[KnobValue, ...]] = {
    "workers": (0, 1, 2),
    "memory_format": ("contiguous", "channels_last"),
    "batch_size": (64, 128),
    "precision": ("fp32", "bf16"),
}
SPEEDS: dict[str, dict[KnobValue, float]] = {
    "workers": {1: 1.2, 2: 1.3},
    "memory_format": {"channels_last": 1.3},
    "precision": {"bf16": 0.9},
}


def searched(
    folder: Path,
    trains: Callable[[Config], float] = lambda _: 1.0,
    speeds: dict[str, dict[KnobValue, float]] = SPEEDS,
    **options: Any,
) -> tuple[Searched, SearchResult]:
    script = Script(speeds, noise=0.02, process_noise=0.01, trains=trains)
    search = begin(folder, script, KNOBS, **options)
    return search, search.go_on(180.0)


def test_the_change_that_trains_something_else_is_found_and_the_search_goes_on_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A memory format that makes each loss 1 % larger; without time to compare it before."""
    monkeypatch.setattr(Plan, "has_time_for_canary", False)
    search, result = searched(
        tmp_path, lambda config: 1.01 if config["memory_format"] == "channels_last" else 1.0
    )
    blamed = [record for record in search.study.rehearsals if record.is_blamed]
    assert [dict(record.guilty) for record in blamed] == [{"memory_format": "channels_last"}]
    assert result.finding is Finding.FASTER
    assert result.best["workers"] in {1, 2}
    assert result.best["memory_format"] == "contiguous"
    out = told(result, capsys)
    assert (
        "Not recommended: memory_format=channels_last changes the training: losses differ by" in out
    )
    assert "from step 1 on" in out
    (refused,) = as_data(result)["learning"]["refused"]
    assert refused["blame"] == {"memory_format": "channels_last"}
    assert refused["changes"].items() > {"memory_format": "channels_last"}.items()
    assert refused["why"].startswith("losses differ by")


def test_what_another_precision_learns_is_checked_where_it_is_doubtful(tmp_path: Path) -> None:
    """The loss of the short epochs alone leaves room for one that is 3 % larger."""
    dice = random.Random(0)
    speeds: dict[str, dict[KnobValue, float]] = {"precision": {"bf16": 1.4}}

    def trains(config: Config) -> float:
        return 1 + dice.gauss(0, 0.003) if config["precision"] == "bf16" else 1.0

    search, result = searched(tmp_path / "sound", trains, speeds)
    assert result.best["precision"] == "bf16"
    (record,) = search.study.rehearsals
    assert record.learning is not None
    doubtful = replace(
        record, learning=Interval(0.0, -0.03, 0.03), seeds=0, unchecked_s=200.0, guilty={}
    )
    assert doubtful.training_note.endswith(
        "(loss at equal samples +0.0 % ± 3.0 %; to tell more, it needs 4 min more "
        "(--may-change batch))."
    )
    unknown = replace(doubtful, learning=None)
    assert "not checked, needs 4 min more (--may-change batch)" in unknown.training_note


def test_what_changes_learning_by_design_is_said_to_be_unchecked(tmp_path: Path) -> None:
    """The rest of the config is compared without it."""
    speeds: dict[str, dict[KnobValue, float]] = {
        "precision": {"bf16": 1.4},
        "batch_size": {128: 1.3},
        "memory_format": {"channels_last": 1.2},
        "workers": {1: 0.8, 2: 0.8},
    }
    search, result = searched(
        tmp_path,
        lambda config: 1.1 if config["precision"] == "bf16" else 1.0,
        speeds,
        may_change=MayChange.ANY,
    )
    assert (result.best["precision"], result.best["batch_size"]) == ("bf16", 128)
    (record,) = search.study.rehearsals
    assert dict(record.by_design) == {"precision": "bf16", "batch_size": 128}
    assert record.training is not None
    assert record.training.sameness is Sameness.ROUNDING
    assert "apart from precision=bf16 batch_size=128 (not checked)" in result.training_note
    rehearsals = [q for q in search.machine.asked if q.kind == "rehearse"]
    assert len(rehearsals) == 4, "the config, the program twice, and the config without these"


def test_a_larger_global_batch_is_by_design_but_not_the_same_in_parts() -> None:
    space = make_space(
        {
            "batch_size": (64, 128),
            "accumulation_steps": (1, 2),
            "memory_format": ("contiguous", "channels_last"),
        }
    ).resolve(make_hardware(), make_profile())
    own = space.baseline
    assert by_design(own.replace(memory_format="channels_last"), own) == {}
    assert by_design(own.replace(batch_size=128), own) == {"batch_size": 128}
    ranks = (
        make_space({"batch_size": (32, 64), "devices": ("single", "ddp-2")})
        .resolve(make_hardware(), make_profile())
        .baseline
    )
    shared = ranks.replace(devices="ddp-2", batch_size=32)
    assert by_design(shared, ranks) == {}
    assert set(by_design(shared, ranks, normalises=True)) >= {"devices", "batch_size"}
    parts = {"batch_size": int(own["batch_size"]) // 2, "accumulation_steps": 2}
    assert by_design(own.replace(**parts), own) == {}


def test_batchnorm_of_replicas_is_not_that_of_one_device() -> None:
    """What ranks make of it is compared with what one device makes of their shares."""
    space = make_space({"batch_size": (32, 64), "devices": ("data_parallel", "single", "ddp-2")})
    resolved = space.resolve(
        make_hardware(gpus=(A100, A100)),
        make_profile(device="cuda", replicas=2, batch_norm_layers=1),
    )
    own, ran = resolved.baseline, list[Config]()
    ranks, one = own.replace(devices="ddp-2", batch_size=32), own.replace(devices="single")
    for config in (one, ranks):
        changes = dict(config.changes_from(own))
        assert by_design(config, own) == {}
        assert by_design(config, own, normalises=True) == changes
        assert by_design(own, config, normalises=True).keys() == changes.keys()
    larger = one.replace(batch_size=64)
    assert by_design(larger, own.replace(batch_size=32)) == {"batch_size": 64}

    class Traces:
        def trace(self, config: Config, *_: object) -> TrainingTrace:
            ran.append(config)
            return TrainingTrace((), 0.0)

    check = SelfCheck(Traces(), resolved, 0.1, {}, normalises=True)
    assert check.exact_part(ranks) == ranks
    assert check.exact_part(one) == own
    check.written()
    check.written(shares=2)
    assert ran == [own, one]
