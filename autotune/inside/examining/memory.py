"""Memory of the program's processes, read at the ends of equal stretches of steps."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from time import perf_counter

import psutil
import torch

from autotune.measurement.examination import MemoryGrowth

WATCHED_S = 2.0  # all stretches together
STRETCHES = 6
FEWEST = 4  # stretches that tell a growth from a single step up
MIN_STEPS = 4  # in a stretch
PACED_BY = 5  # steps from which the length of a step is known; others may stretch some of them


class MemoryWatch:
    """Reads memory at the end of each stretch of steps; the examiner calls ``step()``.

    Pages that the kernel can drop and read again do not count, such as those of a mapped file. Nor
    do pages that processes share, so a worker's copies of the data set count once they are its own:
    reading Python objects copies their pages bit by bit after a fork.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._host: list[int] = []
        self._device: list[int] = []
        self._ends_s = [perf_counter()]  # of the first steps
        self._steps = 0
        self._in_stretch = MIN_STEPS

    @property
    def is_done(self) -> bool:
        """Whether all stretches are over."""
        return len(self._host) > STRETCHES

    def step(self) -> None:
        """Count a step, and read memory if a stretch ends with it."""
        if len(self._ends_s) <= PACED_BY:
            self._ends_s.append(perf_counter())
            taken_s = [b - a for a, b in zip(self._ends_s, self._ends_s[1:], strict=False)]
            steps = WATCHED_S / STRETCHES / max(median(taken_s), 1e-6)
            self._in_stretch = max(MIN_STEPS, round(steps))
            return
        if self._steps % self._in_stretch == 0 and not self.is_done:
            self._read()
        self._steps += 1

    def found(self) -> MemoryGrowth | None:
        """Return the readings; None if there was time for too few of them."""
        if len(self._host) <= FEWEST:
            return None
        return MemoryGrowth(self._in_stretch, tuple(self._host), tuple(self._device))

    def _read(self) -> None:
        processes = (self._process, *self._process.children(recursive=True))
        self._host.append(sum(_unshared_bytes(process.pid) for process in processes))
        if torch.cuda.is_available():
            self._device.append(torch.cuda.memory_allocated())


def _unshared_bytes(pid: int) -> int:
    """Return the memory of a process that nobody shares and that is in no file; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
    except OSError:
        return 0
    wanted = ("Private_Dirty:", "Swap:")
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(wanted))
