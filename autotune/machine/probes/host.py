"""Host memory used by a rig's whole process tree."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import psutil

from autotune.machine.probes.base import Probe
from autotune.machine.process_tree import tree
from autotune.measurement.readings import Memory


class HostMemory(Probe):
    """Peak of the process tree's memory over the samples.

    The parent process samples it once a second, or less often where that costs too much. It adds
    PSS, in which a shared page is divided among the processes that share it, because loader workers
    share most of their pages with the program. RSS, which counts such a page once per worker, is
    used only where PSS cannot be read.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak_bytes: int | None = None

    def reset(self) -> None:
        """Forget the peak."""
        self._peak_bytes = None

    def sample(self) -> None:
        """Read the memory of the whole tree once."""
        total = tree_bytes(self._pid)
        if total is not None:
            self._peak_bytes = max(total, self._peak_bytes or 0)

    def read(self, memory: Memory) -> Memory:
        """Return *memory* with the peak filled in."""
        return replace(memory, host_bytes=self._peak_bytes)


def tree_bytes(pid: int) -> int | None:
    """Return the memory of a process and its descendants in bytes; None if it has ended."""
    total = 0
    for process in tree(pid):
        with suppress(psutil.Error):  # it has ended meanwhile
            try:
                full = process.memory_full_info()
                total += int(getattr(full, "pss", full.rss))
            except psutil.AccessDenied:
                total += int(process.memory_info().rss)
    return total or None
