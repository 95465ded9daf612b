"""What a search says about how long the steps of the whole training take, in virtual time."""

from pathlib import Path

import pytest

from autotune.measurement.goal import THROUGHPUT, Goal
from autotune.program.config import KnobValue
from autotune.program.profile import RunLength
from autotune.results.as_data import as_data
from autotune.results.result import SearchResult
from tests.made import make_profile
from tests.scripted import Script, begin
from tests.tuning.watched import told

KNOBS: dict[str, tuple[KnobValue, ...]] = {"workers": (0, 1, 2), "pinning": ("off", "non-blocking")}
SPEEDS: dict[str, dict[KnobValue, float]] = {"workers": {1: 1.5, 2: 2.0}}
LOOP_S = 10.0  # of an epoch as written: 10,000 samples at 1,000 a second


def found(folder: Path, length: RunLength, goal: Goal = THROUGHPUT) -> SearchResult:
    profile = make_profile(length=length)
    script = Script(SPEEDS, noise=0.02, process_noise=0.01, profile=profile, start_s=3.0)
    return begin(folder, script, KNOBS, goal=goal).go_on(180.0)


def test_the_steps_of_all_epochs_are_estimated_before_and_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = found(tmp_path, RunLength(30.0, "--epochs 30"))
    assert result.training_steps is not None
    seconds = result.training_steps.seconds
    assert seconds["baseline"] == pytest.approx(3 + 30 * LOOP_S, rel=0.05)
    assert seconds["best"] == pytest.approx(3 + 30 * LOOP_S / 2, rel=0.05)
    out = told(result, capsys)
    assert "The training steps of the whole training, estimated: 30 epochs (--epochs 30)" in out
    assert "Evaluation and checkpoints, which were not timed, come on top." in out


def test_a_program_that_counts_its_steps_is_told_how_long_they_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    length = RunLength(steps=5000, where="--max-steps 5000")
    result = found(tmp_path, length)
    assert result.training_steps is not None
    seconds = result.training_steps.seconds
    assert seconds["best"] < seconds["baseline"]
    assert "estimated: 5,000 steps (--max-steps 5000)" in told(result, capsys)
    told_of = as_data(result)["training_steps"]
    assert told_of["steps"] == 5000
    best, written = (round(seconds[side], 1) for side in ("best", "baseline"))
    assert told_of["seconds"] == {"best": best, "as_written": written}


def test_the_hours_of_a_training_are_told_by_the_speedup_of_the_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = found(tmp_path, RunLength(), Goal(hours=10.0))
    assert result.training_steps is None
    out = told(result, capsys)
    assert "A training of 10 h takes 5 h" in out or "A training of 10 h takes 4 h" in out
    assert "by the speedup of the training loop" in out
