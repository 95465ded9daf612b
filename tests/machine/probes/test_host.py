"""Host memory of a real process tree."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from autotune.machine.process_tree import HostMemory, tree_bytes
from autotune.measurement.readings import Memory
from tests.rigging import talking

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
    with talking(TREE) as (process, said):
        assert said == "held"
        yield process


def test_the_peak_of_a_tree_is_kept_until_a_new_window_and_when_it_has_gone(
    tree: subprocess.Popen[str],
) -> None:
    probe = HostMemory(tree.pid)

    def peak() -> int | None:
        return probe.read(Memory()).host_bytes

    probe.sample()
    whole = peak()
    assert whole is not None
    assert 2 * HELD < whole < 2 * HELD + 200 * MIB, "the memory of the child counts"
    assert tree.stdin is not None
    assert tree.stdout is not None
    tree.stdin.write("free child\n")
    tree.stdin.flush()
    assert tree.stdout.readline() == "freed\n"
    probe.sample()
    assert peak() == whole
    probe.reset()
    assert peak() is None
    probe.sample()
    later = peak()
    assert later is not None
    assert HELD < later < whole - HELD / 2
    tree.communicate()
    probe.sample()
    assert peak() == later
    assert tree_bytes(tree.pid) is None
