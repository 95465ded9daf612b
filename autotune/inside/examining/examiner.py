"""Examines a program that trains, for ``autotune doctor``: see ``measurement/examination``.

While the program trains on, two stages follow each other: some seconds of steps in which memory is
read; and, between two steps, the readings that take the thread for themselves, such as loading
items.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import psutil
import torch

from autotune.inside.data.feed import Feed
from autotune.inside.examining.items import examine_items
from autotune.measurement.examination import Affinity, Examination, MemoryGrowth

logger = logging.getLogger("autotune")
MOST_S = 20.0  # for watching memory, however long a step takes
WATCHED_S = 2.0  # all stretches together
STRETCHES = 6
FEWEST = 4  # stretches that tell a growth from a single step up
MIN_STEPS = 4  # in a stretch
PACED_BY = 5  # steps from which the length of a step is known; others may stretch some of them


class Examiner:
    """Examines the program's steps in stages.

    Args:
        feed: Returns the training loader's present feed; None if there is not exactly one loader.

    Attributes:
        found: What was seen so far.
    """

    clock = None  # the parts of steps are not timed

    def __init__(self, feed: Callable[[], Feed | None], allowed: tuple[int, ...]) -> None:
        self._feed, self._allowed = feed, allowed
        self.found = Examination()
        self.is_done = False
        self._stages = self._run()
        next(self._stages)

    def disturb(self) -> None:
        """Do nothing: memory grows in a step that does something else, too."""

    def resume(self) -> None:
        """Continue after a pause between two epochs."""

    def step(self, samples: int, wait_s: float, tokens: int = 0) -> None:  # noqa: ARG002
        """Continue at the boundary after a step."""
        next(self._stages, None)

    def close(self) -> None:
        """Undo all changes to torch, also in the middle of a stage."""
        self._stages.close()

    def _run(self) -> Generator[None]:
        memory, began = MemoryWatch(), perf_counter()
        while not memory.is_done and perf_counter() - began < MOST_S:
            yield
            memory.step()
        self._read("growth", memory.found)
        feed = self._feed()
        self._read("affinity", self._affinity)
        if feed is not None:
            self._read("items", lambda: examine_items(feed.loader))
        self.is_done = True

    def _read(self, part: str, take: Callable[[], object]) -> None:
        """Add a reading to what was found; a reading that fails stays unknown.

        It runs within the program's own step, which must not end by a defect of autotune.
        """
        try:
            taken: dict[str, Any] = {part: take()}
            self.found = replace(self.found, **taken)
        except Exception as error:  # noqa: BLE001 - whatever it is
            logger.warning("autotune: %s could not be examined: %r", part, error)

    def _affinity(self) -> Affinity:
        workers = []
        for child in multiprocessing.active_children():
            with suppress(OSError):  # it ended meanwhile
                workers.append(_cores(child.pid or 0))
        return Affinity(self._allowed, _training_cores(set(self._allowed)), tuple(workers))


def _training_cores(allowed: set[int]) -> tuple[int, ...]:
    """Return the cores of the main thread, and of threads that OpenMP has bound to others."""
    used = set(_cores(threading.main_thread().native_id or 0))
    of_python = {thread.native_id for thread in threading.enumerate()}
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) not in of_python:
            with suppress(OSError):  # it ended meanwhile
                cores = set(_cores(int(task.name)))
                used |= cores if cores < allowed else set()
    return tuple(sorted(used))


def _cores(pid: int) -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(pid)))


class MemoryWatch:
    """Reads memory at the end of each stretch of steps.

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
        if torch.cuda.is_initialized():  # to ask for GPUs is the program's business
            gpus = range(torch.cuda.device_count())
            self._device.append(sum(map(torch.cuda.memory_allocated, gpus)))


def _unshared_bytes(pid: int) -> int:
    """Return the memory of a process that nobody shares and that is in no file; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
    except OSError:
        return 0
    wanted = ("Private_Dirty:", "Swap:")
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(wanted))
