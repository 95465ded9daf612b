"""What a process has started is found, whoever started it."""

from __future__ import annotations

import subprocess
import sys
import threading

from autotune.machine.process_tree import descendants, is_at_work

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


def test_children_of_any_thread_and_theirs_are_found() -> None:
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

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    (child,) = started
    try:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert {child.pid, grandchild} <= {process.pid for process in descendants()}
    finally:
        child.communicate("")
    assert not {child.pid, grandchild} & {process.pid for process in descendants()}


def test_a_process_is_at_work_if_one_below_it_is() -> None:
    waits = "import sys; print(flush=True); sys.stdin.read()"
    for code, is_expected in ((CHILD, True), (waits, False)):
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline()  # it has begun
            assert is_at_work(process.pid) is is_expected
            process.communicate()
