"""``benchmarks/gpu``: each fault of autotune's that it looks for ends as FAIL, and no other does.

The command ``autotune`` and the program are scripts that answer at once; what runs them is real.
How a real GPU answers is judged by pure functions, over values as nvidia-smi and torch give them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.gpu.__main__ import CHECKS, run_one
from benchmarks.gpu.answer import Ratio
from benchmarks.gpu.bench import FULL, ROOT, Bench, Ran, Status
from benchmarks.gpu.facts_check import FactsCheck, judge_facts, judge_held_memory, judge_warning
from benchmarks.gpu.listed import Printed, Setting, TrainingProgram
from benchmarks.gpu.program_check import ProgramCheck, judge_end, judge_held

FOLDER = Path(__file__).parent / "programs"
AUTOTUNE = f"{sys.executable} {FOLDER / 'scripted_autotune.py'}"
FAST = Setting("fast", ("--fast",))
PROGRAM = ProgramCheck(TrainingProgram("prints_its_rate", (FAST,), folder=FOLDER))
FACTS = FactsCheck(script=FOLDER / "prints_its_rate.py")
# By fault, the check that has to see it and a word of the sentence
FAULTS = {
    "wrong claim": ("prints_its_rate", "of the claimed 2.20x"),
    "no claim": ("prints_its_rate", "no claim"),
    "leaves a process": ("prints_its_rate", "sleep 60"),
    "no answer": ("prints_its_rate", "search: "),
    "another device": ("prints_its_rate", "cuda:1"),
    "wrong memory": ("facts", "3.12 GiB, 2.40"),
    "wrong facts": ("facts", "doctor has none of torch's"),
}
Sentences = dict[str, list[tuple[str, str]]]


def start_checks(out: Path, fault: str, *options: str) -> subprocess.Popen[str]:
    """Start both checks in a process of their own, as a user would."""
    code = (
        "import sys; from benchmarks.gpu.__main__ import main;"
        "from tests.test_gpu_benchmark import FACTS, PROGRAM;"
        "sys.exit(main(sys.argv[1:], (PROGRAM, FACTS)))"
    )
    command = [sys.executable, "-c", code, "--out", str(out), "--autotune", AUTOTUNE, *options]
    environment = {**os.environ, "FAULT": fault, "PYTHONPATH": str(ROOT), "TMPDIR": str(out)}
    return subprocess.Popen(
        command, env=environment, cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def sentences(out: Path) -> Sentences:
    """Return the sentences in the result file with their checks, by status."""
    (file,) = out.glob("*.json")
    found: Sentences = {status: [] for status in Status}
    for check in json.loads(file.read_text(encoding="utf-8"))["checks"]:
        for finding in check["findings"]:
            found[finding["status"]].append((check["check"], finding["text"]))
    return found


def run_checks(out: Path, fault: str, *options: str) -> Sentences:
    """Run both checks, and return what they found."""
    with start_checks(out, fault, *options) as process:
        _, said = process.communicate(timeout=60)
    found = sentences(out)
    assert process.returncode == int(bool(found["FAIL"])), said
    return found


def working_in(folder: Path) -> list[str]:
    """Return the command lines of processes that work in a folder."""
    return [
        " ".join(process.info["cmdline"] or [])
        for process in psutil.process_iter(["cwd", "cmdline"])
        if (process.info["cwd"] or "").startswith(str(folder))
    ]


@pytest.mark.parametrize("rehearsal", [True, False])
def test_an_honest_autotune_passes_everything_and_only_what_needs_a_gpu_is_skipped(
    tmp_path: Path, rehearsal: bool
) -> None:
    found = run_checks(tmp_path, "", *(["--rehearse"] if rehearsal else []))

    assert found["FAIL"] == []
    assert all("here" in text for _, text in found["SKIP"])
    passed = " ".join(text for _, text in found["PASS"])
    assert "makes 1.60x ± 0% of the claimed 1.60x ± 3%" in passed
    assert "no process is left" in passed


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_ends_as_a_failure_of_the_check_that_looks_for_it(
    tmp_path: Path, fault: str
) -> None:
    check, words = FAULTS[fault]

    found = run_checks(tmp_path, fault, "--only", check)

    assert any(words in text for _, text in found["FAIL"]), found


def test_a_check_without_its_seconds_is_skipped_and_says_so(tmp_path: Path) -> None:
    found = run_checks(tmp_path, "", "--seconds", "100")

    assert found["FAIL"] == []
    assert ("prints_its_rate", "it needs 130 s, 100 s are left") in found["SKIP"]
    assert any(check == "facts" for check, _ in found["PASS"])


def test_a_check_that_hangs_is_killed_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", "hangs")
    bench = Bench(AUTOTUNE.split(), tmp_path / "it", 3.0, rehearsal=False)

    told, rest = run_one(PROGRAM, bench, 3.0).findings

    assert told.text.startswith("by its flag, fast: 1.60x"), "what was told is kept"
    assert (rest.status, rest.text) == (Status.SKIP, "the rest: its 3 s have run out")
    assert not working_in(tmp_path)


def test_ctrl_c_ends_what_runs_and_keeps_what_was_found(tmp_path: Path) -> None:
    with start_checks(tmp_path, "hangs") as process:
        while not any("scripted_autotune.py search" in line for line in working_in(tmp_path)):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        table, _ = process.communicate(timeout=30)

    assert process.returncode == 130
    assert ("prints_its_rate", "the rest: interrupted") in sentences(tmp_path)["SKIP"]
    assert "by its flag, fast: 1.60x" in table
    assert not working_in(tmp_path)


def test_a_search_that_is_late_or_killed_or_crashes_fails() -> None:
    endings = (Ran(0, "", 68.9), Ran(0, "", 69.1), Ran(None, "", 60.0), Ran(1, "", 2.0))

    judged = [judge_end(ending, budget_s=60).status for ending in endings]

    assert judged == [Status.PASS, Status.FAIL, Status.FAIL, Status.FAIL]


def test_facts_of_a_gpu_are_held_against_torch() -> None:
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


def test_a_stranger_has_to_be_named_by_its_id() -> None:
    warnings = ["The GPU H100 80GB is used by python (process 4711) with 2.0 GiB."]

    judged = [judge_warning(warnings, pid).status for pid in (4711, 471, 80)]

    assert judged == [Status.PASS, Status.FAIL, Status.FAIL]


def test_memory_of_a_gpu_that_is_off_by_a_third_or_unknown_fails() -> None:
    held = 2 << 30
    bare = Printed(1.0, "cuda", peak_bytes=held + (2 << 20), resident_bytes=None)

    def judged(reserved: int | None, by_driver: int | None, *, is_listed: bool = True) -> list[str]:
        figures = {"device_reserved_bytes": reserved, "device_process_bytes": by_driver}
        known = {name: size for name, size in figures.items() if size is not None}
        return [f.status for f in judge_held_memory(known, bare, is_listed=is_listed)]

    assert judged(held, held + (500 << 20)) == ["PASS", "PASS"]
    assert judged(int(1.3 * held), 2 * held) == ["FAIL", "FAIL"]
    assert judged(int(0.7 * held), None) == ["FAIL", "FAIL"]
    assert judged(None, None, is_listed=False) == ["FAIL", "SKIP"]


def test_memory_of_the_device_has_to_come_back() -> None:
    judged = [judge_held(1 << 30, after).status for after in (1 << 30, 5 << 28)]

    assert judged == [Status.PASS, Status.FAIL]


def test_the_error_of_four_runs_is_students() -> None:
    ratio = Ratio.of_speeds([1.6, 1.6 * 1.02], [1.0, 1.0])

    assert ratio.value == pytest.approx(1.6 * 1.01, rel=1e-3)
    assert ratio.error == pytest.approx(4.303 * 0.0198 / 2, rel=1e-2)
    assert Ratio.of_speeds([2.0], [1.0]).error is None
    claim = Ratio.within(2.0, 1.9, 2.1)
    assert claim.agrees_with(Ratio(0.65, 0.0))
    assert claim.agrees_with(Ratio(0.5, 0.0)) is False
    assert claim.agrees_with(Ratio(0.65, 0.5)) is None, "too noisy to tell"


def test_the_programs_of_most_worth_fit_into_one_call_and_the_rest_into_another() -> None:
    needs = [check.needs_s(FULL) for check in CHECKS]

    assert sum(needs[:4]) <= 480
    assert sum(needs[4:]) <= 600
