"""Processes: started in a session of their own and ended with all that they started."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

from autotune.program.program import LaunchPlan
from autotune.rig import processes
from tests.rigging import is_running, wait_for

PATIENCE_S = 10.0

# A process that ignores SIGTERM, reports its id, and stays.
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
while True:
    time.sleep(60)
"""
# Starts STUBBORN and goes at once: its child is an orphan.
ORPHANING = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {STUBBORN!r}])
"""
# Starts STUBBORN, and with "session" gives it a session of its own, as torchrun does its ranks.
NESTING = f"""
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], start_new_session="session" in sys.argv)
print(os.getpid(), flush=True)
while True:
    time.sleep(60)
"""


def start(source: str, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return processes.start(
        LaunchPlan((sys.executable, "-c", source, *arguments), str(log.parent)), log
    )


def reported(log: Path, count: int) -> list[int]:
    """Return the process ids that were written to the log, once all are there."""
    assert wait_for(lambda: log.exists() and log.read_text().count("\n") >= count), log.read_text()
    return [int(line) for line in log.read_text().split()]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    place = tmp_path / 'it\'s a "place"'
    place.mkdir()
    return place / "log.txt"


def test_a_process_has_its_own_session_directory_and_variables(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_STORAGE", "postgresql://user:password@host/database")
    source = (
        "import os, sys\n"
        "print(os.getsid(0) == os.getpid(), os.getcwd(), os.environ['FROM_PLAN'],"
        " 'AUTOTUNE_STORAGE' in os.environ, flush=True)\n"
        "print('and stderr', sys.stdin.read(), file=sys.stderr)\n"
    )
    plan = LaunchPlan((sys.executable, "-c", source), str(log.parent), {"FROM_PLAN": "yes"})
    process = processes.start(plan, log)
    assert process.wait(PATIENCE_S) == 0
    assert log.read_text().splitlines() == [f"True {log.parent} yes False", "and stderr "]
    assert "FROM_PLAN" not in os.environ


def test_a_process_that_listens_is_asked_and_may_clean_up(log: Path) -> None:
    source = (
        "import signal, sys, time\n"
        "def end(*_):\n    print('cleaned up', flush=True)\n    sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    process = start(source, log)
    assert wait_for(lambda: "ready" in log.read_text())
    processes.end_tree(process, grace_s=PATIENCE_S)
    assert process.returncode == 3
    assert "cleaned up" in log.read_text()


def test_a_program_gets_no_signal_by_which_a_job_is_asked_to_leave_while_it_starts(
    log: Path,
) -> None:
    process = start("import os; import time; print(os.getpid(), flush=True); time.sleep(60)", log)
    reported(log, 1)
    process.send_signal(signal.SIGUSR1)
    process.terminate()
    assert process.wait(PATIENCE_S) == -signal.SIGTERM
    assert signal.SIGUSR1 not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.parametrize("arguments", [(), ("session",)], ids=["same session", "own session"])
def test_a_grandchild_that_ignores_sigterm_is_ended(log: Path, arguments: tuple[str, ...]) -> None:
    process = start(NESTING, log, *arguments)
    pids = reported(log, 2)
    processes.end_tree(process, grace_s=PATIENCE_S)
    assert wait_for(lambda: not any(map(is_running, pids)))


def test_an_orphan_in_the_same_session_is_ended_and_other_processes_are_left_alone(
    log: Path,
) -> None:
    process = start(ORPHANING, log)
    assert process.wait(PATIENCE_S) == 0
    bystander = start(STUBBORN, log)
    orphan, other = sorted(reported(log, 2), key=bystander.pid.__eq__)
    assert (is_running(orphan), other) == (True, bystander.pid)
    processes.end_tree(process)
    try:
        assert wait_for(lambda: not is_running(orphan))
        assert is_running(bystander.pid)
    finally:
        processes.end_tree(bystander, grace_s=0.1)


def test_a_process_that_adopts_orphans_keeps_none_of_them_as_a_zombie(log: Path) -> None:
    """As the first process of a container does; this one asks for it."""
    adopts = partial(ctypes.CDLL(None).prctl, 36)  # PR_SET_CHILD_SUBREAPER
    adopts(1)
    try:
        process = start(ORPHANING, log)
        assert process.wait(PATIENCE_S) == 0
        (orphan,) = reported(log, 1)
        assert psutil.Process(orphan).ppid() == os.getpid()
        processes.end_tree(process)
        assert not psutil.pid_exists(orphan)
    finally:
        adopts(0)
