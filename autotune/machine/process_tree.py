"""Process tree: a process with everything that it started; the one place that reads it."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from time import sleep

import psutil

from autotune.measurement.readings import Memory

WATCH_S = 0.5  # how long a tree is watched for work
AT_WORK = 0.1  # share of a core from which it is at work


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and those below it; empty if it has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """Return the processes below a process, this one by default; empty if it has ended."""
    return tree(os.getpid() if pid is None else pid)[1:]


def is_below(pid: int, root: int) -> bool | None:
    """Return whether a process is *root* or descends from it; None if there is none of this id.

    Only the processes above it are read, where ``tree()`` reads all of the machine.
    """
    try:
        return root in {pid, *(process.pid for process in psutil.Process(pid).parents())}
    except psutil.Error:
        return None


def is_at_work(pid: int | None = None) -> bool:
    """Return whether a process, this one by default, or any below it uses the processor now.

    They are watched for ``WATCH_S`` seconds.
    """
    processes = tree(os.getpid() if pid is None else pid)
    before_s = _cpu_s(processes)
    sleep(WATCH_S)
    return _cpu_s(processes) - before_s >= AT_WORK * WATCH_S


def _cpu_s(processes: list[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        with suppress(psutil.Error):  # it has ended
            total += sum(process.cpu_times()[:2])
    return total


class HostMemory:
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
