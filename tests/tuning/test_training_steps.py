"""What a search says about how long the steps of the whole training take, in virtual time."""

import re
from pathlib import Path

import pytest

from autotune.measurement.goal import THROUGHPUT, Goal
from autotune.program.config import KnobValue
from autotune.program.profile import RunLength
from autotune.results.data.result import as_data
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


def test_the_steps_of_all_epochs_are_estimated_before_and_after(tmp_path: Path) -> None:
    """By the claim as it is printed, so that a reader's own arithmetic gives the same."""
    time = found(tmp_path, RunLength(30.0, "--epochs 30")).figures.training
    assert time is not None
    assert time.before_s == pytest.approx(3 + 30 * LOOP_S, rel=0.05)
    assert time.after_s == pytest.approx(3 + 30 * LOOP_S / 2, rel=0.05)
    assert "30 epochs" in str(time)
    assert str(time).endswith("no evaluation)")


def test_a_program_that_counts_its_steps_is_told_how_long_they_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = found(tmp_path, RunLength(steps=5000, where="--max-steps 5000"))
    time = result.figures.training
    assert time is not None
    assert 0 < time.saved_s < time.before_s
    assert "(5,000 steps" in told(result, capsys)
    assert as_data(result)["training_steps"]["seconds"]["best"] == time.after_s


def test_the_hours_of_a_training_are_told_by_the_speedup_of_the_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = found(tmp_path, RunLength(), Goal(hours=10.0))
    assert result.training_steps is None
    out = told(result, capsys)
    assert re.search(r"your training 10h → about [45]h[ 0-9m]* \(--for-hours 10;", out)
    assert "pays saves" in out
