"""How a program ends is told apart, by whatever line it is started and whoever starts its ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from autotune.measurement.outcome import Outcome
from tests.program.line.endings import KINDS, ways_of

# What a search is told of a process, or of the rank that ended the others, and what its user reads
TOLD = {
    "raises": (Outcome.CRASHED, "ValueError: no such column", "failed under autotune"),
    "exits": (Outcome.CRASHED, "SystemExit: 3", "failed under autotune"),
    "is killed": (Outcome.HOST_OUT_OF_MEMORY, " was killed (SIGKILL), as the", "does not fit"),
    "host memory": (Outcome.HOST_OUT_OF_MEMORY, "the host ran out of memory", "does not fit"),
    "device memory": (Outcome.OUT_OF_MEMORY, "the device ran out of memory", "does not fit"),
}
STATUS = {"exits": 3, "is killed": -9}  # of one process; any other way is 1
# What a run prints: of an exception its last line, of other ways what the starter of ranks says
ERRORS = {
    "raises": "ValueError: no such column",
    "host memory": "MemoryError",
    "device memory": "torch.OutOfMemoryError: CUDA out of memory",
}
LAUNCHER = {
    "exits": "autotune: rank 1 exited with code 3; the others are ended",
    "is killed": "autotune: rank 1 was ended by signal 9; the others are ended",
}
SPAWN = {
    "exits": "ProcessExitedException: process 1 terminated with exit code 3",
    "is killed": "ProcessExitedException: process 1 terminated with signal SIGKILL",
}
PRINTED = {"torchrun": LAUNCHER, "ours": LAUNCHER, "spawn": SPAWN}


@pytest.mark.timeout(960)
def test_how_a_program_ends_is_told_apart_natively_in_a_run_and_in_a_search(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.program.line.endings", str(tmp_path)]
    own = {**os.environ, "TMPDIR": str(tmp_path)}  # a rank that is killed leaves its folder
    tried = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=own
    )
    try:
        printed, errors = tried.communicate(timeout=900)  # a minute where nobody else computes
    finally:
        left = psutil.Process(tried.pid).children(recursive=True) if tried.poll() is None else []
        for process in left:
            process.kill()
        tried.kill()
    assert tried.returncode == 0, errors
    seen = [json.loads(line) for line in printed.splitlines()]
    assert [(one["kind"], one["way"]) for one in seen] == [
        (k, w) for k in KINDS for w in ways_of(k)
    ]
    for one in seen:
        kind, way = one["kind"], one["way"]
        is_alone = KINDS[kind][1] == "nobody"
        if "run" in one:
            status, printed = one["run"]
            assert status == (STATUS.get(way, 1) if is_alone else 1), one
            assert status == one.get("natively", [status])[0], one
            assert (ERRORS.get(way) or PRINTED.get(kind, {}).get(way, "")) in printed, one
        outcome, reason, read_by_user = one["search"]
        told, why, complaint = TOLD[way]
        assert (outcome, why in reason) == (told, True), one
        assert complaint in read_by_user, one
        assert why in read_by_user, one
        if way == "is killed":
            assert reason.startswith("the process" if is_alone else "rank 1"), one
