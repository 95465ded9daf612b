"""Host memory of a rig's whole process tree."""

from __future__ import annotations

from dataclasses import replace

import psutil

from autotune.machine.probes.base import Probe
from autotune.measurement.measurement import Memory


class HostMemory(Probe):
    """Peak over samples of the tree's PSS, or RSS where PSS is not readable.

    Workers share most pages with the program: summed RSS would count them once per worker.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak_bytes: int | None = None

    def reset(self) -> None:
        """Forget the peak."""
        self._peak_bytes = None

    def sample(self) -> None:
        """Sum up the tree once."""
        total = tree_bytes(self._pid)
        if total is not None:
            self._peak_bytes = max(total, self._peak_bytes or 0)

    def read(self, memory: Memory) -> Memory:
        """Fill in the peak."""
        return replace(memory, host_bytes=self._peak_bytes)


def tree_bytes(pid: int) -> int | None:
    """Return the memory of a process and all its descendants, None when it has gone."""
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        return None
    sizes = [size for size in map(_process_bytes, processes) if size is not None]
    return sum(sizes) or None


def _process_bytes(process: psutil.Process) -> int | None:
    try:
        full = process.memory_full_info()
        return int(getattr(full, "pss", full.rss))
    except psutil.AccessDenied:
        return _rss_bytes(process)
    except psutil.Error:
        return None


def _rss_bytes(process: psutil.Process) -> int | None:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return None
