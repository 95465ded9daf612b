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
    times = [_twice_s() for _ in range(TIMES)]
    first_s, again_s = (min(one[n] for one in times) for n in (0, 1))
    return max(0.0, first_s - again_s) / (SIZE // resource.getpagesize())


def _twice_s() -> tuple[float, float]:
    """Return the seconds that writing to each new page takes, and writing there again."""
    with mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)  # a huge page costs as much as hundreds of others
        return _touched_s(memory), _touched_s(memory)


def _touched_s(memory: mmap.mmap) -> float:
    began_s = perf_counter()
    for place in range(0, SIZE, resource.getpagesize()):
        memory[place] = 1
    return perf_counter() - began_s


def page_faults() -> int:
    """Return the page faults of this process so far that needed no reading from a disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
