"""What a search makes as large as it can, over whole searches in virtual time."""

from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.measurement.goal import Goal, Objective
from autotune.measurement.outcome import Outcome
from autotune.program.config import Config, KnobValue
from autotune.program.may_change import MayChange
from autotune.program.profile import RunLength
from autotune.results.finding import Finding
from autotune.results.result import SearchResult
from tests.made import make_profile
from tests.scripted import Script, begin
from tests.tuning.watched import Factors, Knobs

GIB = 1 << 30
KNOBS: Knobs = {
    "workers": (0, 1, 2),
    "batch_size": (64, 128, 256),
    "precision": ("fp32", "bf16"),
}
FACTORS: Factors = {
    "workers": {1: 1.2, 2: 1.1},
    "batch_size": {128: 1.3, 256: 1.5},
    "precision": {"bf16": 1.2},
}


def peak_bytes(config: Config, _process: int = 1) -> int:
    """Half a GiB and more with the batch; reduced precision takes half as much."""
    part = 0.5 if config["precision"] == "bf16" else 1.0
    return round((0.5 + part * int(config["batch_size"]) / 64) * GIB)


def power_w(config: Config) -> float:
    """Workers take twice the power."""
    return 100.0 if int(config["workers"]) else 50.0


def searched(folder: Path, goal: Goal, factors: Factors = FACTORS, **script: Any) -> SearchResult:
    about = {"peak_bytes": peak_bytes, "power_w": power_w, **script}
    scripted = Script(factors, noise=0.02, process_noise=0.01, **about)
    search = begin(folder, scripted, KNOBS, goal=goal, may_change=MayChange.ANY)
    return search.go_on(300.0)


def test_without_a_gain_any_objective_tells_samples_per_second(tmp_path: Path) -> None:
    slower: Factors = {
        "workers": {1: 0.8, 2: 0.7},
        "batch_size": {128: 0.4, 256: 0.3},
        "precision": {"bf16": 0.5},
    }
    for objective in Objective:
        alike = {"peak_bytes": lambda *_: GIB, "power_w": lambda _: 50.0}
        result = searched(tmp_path / objective, Goal(objective), slower, **alike)
        assert result.finding is Finding.NOTHING_FOUND, objective
        assert result.throughput[0].estimate == pytest.approx(1000.0, rel=0.1), objective


@pytest.mark.parametrize(
    ("objective", "best", "speedup"),
    [
        (Objective.STEP_TIME, {"workers": 1, "batch_size": 64, "precision": "bf16"}, 1.2 * 1.2),
        (Objective.MEMORY, {"batch_size": 64, "precision": "bf16"}, 1.5),
        (Objective.ENERGY, {"workers": 0, "batch_size": 256, "precision": "bf16"}, 1.5 * 1.2),
    ],
)
def test_each_objective_has_its_best_config(
    tmp_path: Path, objective: Objective, best: dict[str, KnobValue], speedup: float
) -> None:
    result = searched(tmp_path, Goal(objective))
    assert result.finding is Finding.FASTER
    assert best.items() <= result.best.items()
    assert result.speedup.estimate == pytest.approx(speedup, rel=0.1)
    assert result.best_file().search.objective == objective


def test_what_cannot_be_measured_cannot_be_the_objective(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no counter of energy.*--objective throughput"):
        searched(tmp_path, Goal(Objective.ENERGY), power_w=lambda _: None)


def test_no_config_is_recommended_that_needs_more_than_the_share_of_memory(tmp_path: Path) -> None:
    """Of 16 GiB, 0.2 are 3.2: enough for a batch of 128, or of 256 in half the precision."""
    result = searched(tmp_path, Goal(max_memory=0.2))
    assert result.finding is Finding.FASTER
    assert peak_bytes(result.best) <= 0.2 * 16 * GIB
    assert (result.best["batch_size"], result.best["precision"]) == (256, "bf16")
    for record in result.records:
        if record.outcome is Outcome.HOST_OUT_OF_MEMORY:
            assert peak_bytes(record.config) > 0.2 * 16 * GIB
            assert record.ending is not None
            assert "more than --max-memory 20%" in record.ending.reason


def test_compiling_is_worth_its_time_in_a_long_training_alone(tmp_path: Path) -> None:
    knobs: Knobs = {"compile": ("off", "default")}
    for hours, is_worth in ((0.05, False), (10.0, True)):
        script = Script({"compile": {"default": 1.3}}, noise=0.02, compile_s=60.0)
        result = begin(tmp_path / f"{hours}", script, knobs, goal=Goal(hours=hours)).go_on(400.0)
        assert (result.finding is Finding.FASTER) is is_worth
        if is_worth:
            assert result.speedup.low <= 1.3 * (1 - 60 / 36_000) <= result.speedup.high


def test_a_larger_batch_saves_nothing_where_the_number_of_steps_is_fixed(tmp_path: Path) -> None:
    length = RunLength(steps=5000, where="train.py:5: for step in range(5000)")
    profile = make_profile(length=length)
    result = searched(tmp_path, Goal(), profile=profile)
    assert result.finding is Finding.FASTER
    assert result.best["batch_size"] == 64
    assert result.speedup is not None
    assert result.speedup.low < 1.44 < result.speedup.high
