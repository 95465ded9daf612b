"""What a process has started is found, whoever started it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from autotune.machine.process_tree import descendants, is_at_work
from tests.rigging import talking

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
    with ThreadPoolExecutor(1) as thread, ExitStack() as stack:
        child, said = thread.submit(stack.enter_context, talking(CHILD)).result()
        started = {child.pid, int(said)}
        assert started <= {process.pid for process in descendants()}
    assert not started & {process.pid for process in descendants()}


def test_a_process_is_at_work_if_one_below_it_is() -> None:
    waits = "import sys; print(flush=True); sys.stdin.read()"
    for code, is_expected in ((CHILD, True), (waits, False)):
        with talking(code) as (process, _):
            assert is_at_work(process.pid) is is_expected
