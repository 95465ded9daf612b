"""Host memory of a real process tree."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from autotune.machine.process_tree import HostMemory, tree_bytes
from autotune.measurement.readings import Memory

MIB = 1 << 20
HELD = 48 * MIB

# A parent with a child; each fills a block of memory of its own, says so, and waits.
TREE = f"""
import subprocess, sys
block = bytearray(b"x" * {HELD})
child = subprocess.Popen(
    [sys.executable, "-c",
     "block = bytearray(b'x' * {HELD}); print('held', flush=True); input()"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print("held", flush=True)
for line in sys.stdin:
    if line == "free child\\n":
        child.communicate("\\n")
        print("freed", flush=True)
if child.poll() is None:
    child.communicate("\\n")
"""


@pytest.fixture
def tree() -> Iterator[subprocess.Popen[str]]:
    """A process with a child, both holding HELD bytes, ended afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-c", TREE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.communicate()


def free_child(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("free child\n")
    process.stdin.flush()
    assert process.stdout.readline() == "freed\n"


def host(probe: HostMemory) -> int | None:
    return probe.read(Memory()).host_bytes


def test_a_new_window_forgets_the_peak(tree: subprocess.Popen[str]) -> None:
    probe = HostMemory(tree.pid)
    probe.sample()
    peak = host(probe)
    assert peak is not None
    assert 2 * HELD < peak < 2 * HELD + 200 * MIB, "the memory of the child counts"
    free_child(tree)
    probe.sample()
    assert host(probe) == peak
    probe.reset()
    assert host(probe) is None
    probe.sample()
    later = host(probe)
    assert later is not None
    assert HELD < later < peak - HELD / 2


def test_a_process_that_has_gone_leaves_the_peak_as_it_was(tree: subprocess.Popen[str]) -> None:
    probe = HostMemory(tree.pid)
    probe.sample()
    peak = host(probe)
    tree.communicate()
    probe.sample()
    assert host(probe) == peak
    assert tree_bytes(tree.pid) is None
