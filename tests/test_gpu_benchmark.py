"""``benchmarks/gpu``: what a GPU and autotune answer is judged rightly.

The judges are pure functions, over values in the form that nvidia-smi and torch give.
"""

import pytest

from benchmarks.answer import Ratio
from benchmarks.gpu.bench import Status
from benchmarks.gpu.program_check import judge_end, judge_held, judge_memory
from benchmarks.processes import Ran


def test_a_search_that_is_late_or_killed_or_crashes_and_memory_that_is_kept_fail() -> None:
    endings = ((0, 68.9), (0, 69.1), (-9, 60.0), (1, 2.0))
    judged = [judge_end(Ran(code, "", "", s), budget_s=60).status for code, s in endings]
    assert judged == [Status.PASS, Status.FAIL, Status.FAIL, Status.FAIL]
    judged = [judge_held(1 << 30, after).status for after in (1 << 30, 5 << 28)]
    assert judged == [Status.PASS, Status.FAIL]
    judged = [judge_memory(found, 2 << 30).status for found in (2 << 30, 3 << 30, None)]
    assert judged == [Status.PASS, Status.FAIL, Status.FAIL]


def test_the_error_of_four_runs_is_students() -> None:
    ratio = Ratio.of_speeds([1.6, 1.6 * 1.02], [1.0, 1.0])
    assert ratio.value == pytest.approx(1.6 * 1.01, rel=1e-3)
    assert ratio.error == pytest.approx(4.303 * 0.0198 / 2, rel=1e-2)
    assert Ratio.of_speeds([2.0], [1.0]).error is None
    claim = Ratio.within(2.0, 1.9, 2.1)
    assert claim.agrees_with(Ratio(0.65, 0.0))
    assert claim.agrees_with(Ratio(0.5, 0.0)) is False
    assert claim.agrees_with(Ratio(0.65, 0.5)) is None, "too noisy to tell"
