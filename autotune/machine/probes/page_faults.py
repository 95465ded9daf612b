"""How long this machine takes for a page fault, which gives a process a page of memory."""

from __future__ import annotations

import mmap
import resource
from functools import cache
from time import perf_counter

SIZE, TIMES = 16 << 20, 5  # the shortest one was not disturbed


@cache
def page_fault_s() -> float:
    """Return the seconds of a page fault, by touching memory that the system has just given."""
    return min(_once_s() for _ in range(TIMES))


def _once_s() -> float:
    step = resource.getpagesize()
    with mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        marks = [_touched(memory, step) for _ in range(2)]
    (first_s, faults), (again_s, _) = marks
    return max(0.0, first_s - again_s) / max(1, faults)


def _touched(memory: mmap.mmap, step: int) -> tuple[float, int]:
    """Write to each page; return the seconds and the page faults."""
    faults, began_s = page_faults(), perf_counter()
    for place in range(0, SIZE, step):
        memory[place] = 1
    return perf_counter() - began_s, page_faults() - faults


def page_faults() -> int:
    """Return the page faults of this process so far that needed no reading from a disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
