"""Minor page faults: they show whether memory is handed out anew for each step, and what it costs.

Once a large block was freed, glibc keeps such blocks in its heap for the rest of the process, so
one config can change how often another one's steps fault (``M_MMAP_THRESHOLD`` in mallopt(3)).
"""

from __future__ import annotations

import mmap
import resource
import statistics
from time import thread_time

import numpy as np

SIZE = 2 << 20  # bytes that one reading maps, fills and unmaps
READINGS = 5  # their median counts; together 5 ms


def count() -> int:
    """Return the minor page faults of this process so far, without its children's."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def seconds_each() -> float:
    """Return the CPU seconds that a minor page fault takes here, releasing the page included.

    With huge pages a fault takes longer, and there are fewer. 0.0 where there is no memory left to
    try it.
    """
    try:
        return max(0.0, statistics.median(_reading() for _ in range(READINGS)))
    except (OSError, MemoryError):
        return 0.0


def _reading() -> float:
    began, faults = thread_time(), count()
    area = mmap.mmap(-1, SIZE, access=mmap.ACCESS_COPY)  # private to this process
    values = np.frombuffer(area, dtype=np.uint8)
    values[:] = 1
    filled = thread_time()
    values[:] = 2
    filled_again = thread_time()
    # The last reference unmaps it. close() would fail where a signal handler raises above.
    del values, area
    whole = thread_time() - began
    return (whole - 2 * (filled_again - filled)) / max(1, count() - faults)
