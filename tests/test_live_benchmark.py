"""``benchmarks.live``: it counts, compares and goes on rightly. No test starts a search."""

import math
from typing import Any

import pytest

from benchmarks import live
from benchmarks.live import Progress, of_turns


def row(script: str = "mnist", repetition: int = 1, **fields: Any) -> dict[str, Any]:
    head = {"commit": "abc", "script": script, "repetition": repetition, "budget": "90s"}
    return {**head, "wall_s": 81.0, "finding": "no significant gain", **fields}


def claimed(estimate: float, true: float, se: float = 0.01) -> dict[str, Any]:
    speedup = {"estimate": estimate, "low": estimate * 0.95, "high": estimate * 1.05}
    truth = {"log": math.log(true), "se": se, "wall_s": 120.0}
    return row(finding="faster", speedup=speedup, truth=truth)


@pytest.mark.parametrize(
    ("pattern", "text", "done"),
    [
        (r"step (?P<count>\d+)", "step 10 | loss\nstep 20 | loss\nstep 1", [10, 20]),
        (r"E(?P<epoch>\d+) (?P<part>\d+)/(?P<of>\d+)", "E1 2/4\rE1 4/4\rE2 1/4\r", [1.5, 2, 2.25]),
        (r"^ *\d+%.* (?P<part>\d+)/(?P<of>\d+)", "maps: 9% 9/9\r 50% 1/2\r", [0.5]),
        (r"^loss", "loss\nother\nloss\n", [1, 2]),
        (r"step (?P<count>\d+)", "step 20\nstep 10\n", [20]),
    ],
)
def test_progress_is_read_from_lines_and_bars(pattern: str, text: str, done: list[float]) -> None:
    progress = Progress(pattern)
    for second, letter in enumerate(text):
        progress.feed(letter, float(second))
    assert [mark.done for mark in progress.marks] == done


def test_a_steady_drift_cancels_and_is_told_as_error() -> None:
    quiet = of_turns([10.0, 15.0, 15.0, 10.0])
    drifting = of_turns([10.0, 15.0 * 1.1, 15.0 * 1.1**2, 10.0 * 1.1**3])
    larger_steps = of_turns([10.0, 7.5, 7.5, 10.0], samples=2.0)
    for found in (quiet, drifting, larger_steps):
        assert math.exp(found["log"]) == pytest.approx(1.5)
    assert quiet["se"] == 0
    assert drifting["se"] == pytest.approx(math.log(1.1))


def test_the_summary_holds_claims_to_the_truth() -> None:
    candidate = {"estimate": 1.1, "low": 1.0, "high": 1.21}
    missed = row(candidate_speedup=candidate, truth={"log": math.log(1.2), "se": 0.0})
    rows = [claimed(1.5, 1.45), claimed(1.5, 1.02), missed, row(finding="failed: no answer")]
    told = "\n".join(live.summary([*rows, {**row("gan"), "wall_s": 99.0}]))
    assert "5 searches, 1 failed, 2 claims, 3 truths" in told
    assert "truly 1.15x or more: 1 of 2" in told
    assert "both 95 % errors: 1 of 2" in told
    assert "below 1.3x: 9.5 % (1)" in told
    assert "above 1.3x: 5.0 % (2)" in told
    assert "110% of its budget (gan)" in told
