"""How long this machine takes for a page fault, which gives a process a page of memory."""

from __future__ import annotations

import mmap
import resource
from functools import cache
from time import perf_counter

SIZE, TIMES = 16 << 20, 5  # the shortest ones were not disturbed


@cache
def page_fault_s() -> float:
    """Return the seconds of a page fault, by touching memory that the system has just given."""
    first_s, again_s = list[float](), list[float]()
    for _ in range(TIMES):
        with mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            memory.madvise(mmap.MADV_NOHUGEPAGE)  # a huge page costs as much as hundreds of others
            first_s.append(_touched_s(memory))
            again_s.append(_touched_s(memory))
    return max(0.0, min(first_s) - min(again_s)) / (SIZE // resource.getpagesize())


def _touched_s(memory: mmap.mmap) -> float:
    began_s = perf_counter()
    for place in range(0, SIZE, resource.getpagesize()):
        memory[place] = 1
    return perf_counter() - began_s


def page_faults() -> int:
    """Return the page faults of this process so far that needed no reading from a disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
