"""What a process has started is found, whoever started it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from autotune.machine.probes.host_load import HostLoad
from autotune.machine.process_tree import descendants, is_at_work, pids_below

# A child that starts another one, says its id, and computes until it is killed
CHILD = """
import subprocess, sys
grandchild = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print(grandchild.pid, flush=True)
try:
    sys.stdin.read()
finally:
    grandchild.kill()
"""


@pytest.mark.skipif(
    not Path(f"/proc/self/task/{os.getpid()}/children").exists(),
    reason="this kernel does not tell a process's children",
)
def test_children_of_any_thread_and_theirs_are_found_and_their_cpu_time_is_ours() -> None:
    started: list[subprocess.Popen[str]] = []

    def start() -> None:
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )

    load = HostLoad(os.getppid())
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    (child,) = started
    try:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert {child.pid, grandchild} <= pids_below(os.getpid())
        assert {child.pid, grandchild} <= {process.pid for process in descendants()}
        before = load.others_s()
        while load.others_s() - before < 0.05:  # ended by the test's time limit if it never grows
            pass
    finally:
        child.communicate("")
    assert not {child.pid, grandchild} & pids_below(os.getpid())


def test_a_process_that_has_ended_has_none() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert pids_below(child.pid) == set()


def test_a_process_is_at_work_if_one_below_it_is() -> None:
    waits = "import sys; print(flush=True); sys.stdin.read()"
    for code, is_expected in ((CHILD, True), (waits, False)):
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline()  # it has begun
            assert is_at_work(process.pid) is is_expected
            process.communicate()
