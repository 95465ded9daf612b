"""``benchmarks/gpu``: what a GPU and autotune answer is judged rightly.

The judges are pure functions, over values in the form that nvidia-smi and torch give.
"""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.gpu.answer import Ratio
from benchmarks.gpu.bench import Ran, Status
from benchmarks.gpu.facts_check import judge_facts, judge_held_memory, judge_warning
from benchmarks.gpu.listed import Printed
from benchmarks.gpu.program_check import judge_end, judge_held


def test_a_search_that_is_late_or_killed_or_crashes_and_memory_that_is_kept_fail() -> None:
    endings = (Ran(0, "", 68.9), Ran(0, "", 69.1), Ran(None, "", 60.0), Ran(1, "", 2.0))
    judged = [judge_end(ending, budget_s=60).status for ending in endings]
    assert judged == [Status.PASS, Status.FAIL, Status.FAIL, Status.FAIL]
    judged = [judge_held(1 << 30, after).status for after in (1 << 30, 5 << 28)]
    assert judged == [Status.PASS, Status.FAIL]


def test_facts_of_a_gpu_are_held_against_torch_and_a_stranger_is_named_by_its_id() -> None:
    h100: dict[str, Any] = {
        "name": "NVIDIA H100 80GB HBM3",
        "memory_bytes": 85_520_809_984,
        "compute_capability": [9, 0],
    }
    other = {**h100, "memory_bytes": h100["memory_bytes"] * 1.3}
    unknown = {**h100, "memory_bytes": None, "compute_capability": None}
    torch = {"gpus": [h100], "torch": "2.11.0+cu130"}
    smi = {"name": "NVIDIA H100 80GB HBM3", "memory.total": "81559"}
    judged = [judge_facts(gpus, torch, [smi]).status for gpus in ([h100], [other], [], [unknown])]
    assert judged == [Status.PASS, Status.FAIL, Status.FAIL, Status.PASS]
    smaller = {**smi, "memory.total": "40960"}
    assert judge_facts([h100], torch, [smaller]).status is Status.FAIL
    warnings = ["The GPU H100 80GB is used by python (process 4711) with 2.0 GiB."]
    judged = [judge_warning(warnings, pid).status for pid in (4711, 471, 80)]
    assert judged == [Status.PASS, Status.FAIL, Status.FAIL]


def test_memory_of_a_gpu_that_is_off_by_a_third_or_unknown_fails() -> None:
    held = 2 << 30
    bare = Printed(1.0, "cuda", peak_bytes=held + (2 << 20), resident_bytes=None)
    for reserved, by_driver, is_listed, expected in (
        (held, held + (500 << 20), True, ["PASS", "PASS"]),
        (int(1.3 * held), 2 * held, True, ["FAIL", "FAIL"]),
        (int(0.7 * held), None, True, ["FAIL", "FAIL"]),
        (None, None, False, ["FAIL", "SKIP"]),
    ):
        figures = {"device_reserved_bytes": reserved, "device_process_bytes": by_driver}
        known = {name: size for name, size in figures.items() if size is not None}
        judged = judge_held_memory(known, bare, is_listed=is_listed)
        assert [finding.status for finding in judged] == expected


def test_the_error_of_four_runs_is_students() -> None:
    ratio = Ratio.of_speeds([1.6, 1.6 * 1.02], [1.0, 1.0])
    assert ratio.value == pytest.approx(1.6 * 1.01, rel=1e-3)
    assert ratio.error == pytest.approx(4.303 * 0.0198 / 2, rel=1e-2)
    assert Ratio.of_speeds([2.0], [1.0]).error is None
    claim = Ratio.within(2.0, 1.9, 2.1)
    assert claim.agrees_with(Ratio(0.65, 0.0))
    assert claim.agrees_with(Ratio(0.5, 0.0)) is False
    assert claim.agrees_with(Ratio(0.65, 0.5)) is None, "too noisy to tell"
