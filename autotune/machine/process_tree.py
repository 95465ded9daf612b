"""Process tree: a process with everything that it started; the one place that reads it."""

from __future__ import annotations

import psutil


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """Return the processes below a process, this one by default; empty if it has ended."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and those below it; empty if it has ended."""
    try:
        root = psutil.Process(pid)
    except psutil.Error:
        return []
    return [root, *descendants(pid)]
