"""Process tree: a process with everything that it started; the one place that reads it."""

from __future__ import annotations

import os
from contextlib import suppress
from time import sleep

import psutil

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
