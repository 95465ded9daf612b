"""Examines a program that trains, for ``autotune doctor``: see ``measurement/examination``.

While the program trains on, three stages follow each other: some seconds of steps in which memory
is read; a few steps whose operators are counted; and, between two steps, the readings that take the
thread for themselves, such as loading items.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from autotune.inside.data.feed import Feed
from autotune.inside.examining.items import examine_items
from autotune.inside.examining.memory import MemoryWatch
from autotune.inside.examining.operators import OperatorCount, operators
from autotune.measurement.examination import Affinity, Examination
from autotune.rig.wire import Examined

logger = logging.getLogger("autotune")
MOST_S = 20.0  # for watching memory, however long a step takes
MAX_COUNTS = 3  # steps whose operators are counted


class LoadingClock:
    """Knows whether the program fetches a batch now; the step tracker tells it."""

    def __init__(self) -> None:
        self.is_loading = False

    def asked(self) -> None:
        """Note that the program requests its next batch."""
        self.is_loading = True

    def leave(self) -> None:
        """Note that it got the batch."""
        self.is_loading = False


class Examiner:
    """Examines the program's steps in stages.

    ``LeadRank`` makes one for the message ``Examine``, calls ``step()`` at the end of each step in
    the program's main thread, and sends ``answer()`` to the parent when ``is_done`` is set.

    Args:
        feed: Returns the training loader's present feed; None if there is not exactly one loader.
        counts: Whether to count operators: compiled code hides them.

    Attributes:
        clock: Told when the program fetches a batch.
        found: What was seen so far.
        is_done: Whether all stages have ended.
    """

    def __init__(
        self,
        device: str,
        feed: Callable[[], Feed | None],
        allowed: tuple[int, ...],
        *,
        counts: bool,
    ) -> None:
        self._device, self._feed = device, feed
        self._allowed, self._counts = allowed, counts
        self._is_disturbed = False
        self.clock = LoadingClock()
        self.found = Examination()
        self.is_done = False
        self._is_busy = False
        self._stages = self._run()
        next(self._stages)

    def answer(self, number: int) -> Examined:
        """Return the message to the parent; *number* is that of its question."""
        return Examined(self.found, number)

    def disturb(self) -> None:
        """Leave out the present step, because the program does something besides training in it."""
        self._is_disturbed = True

    def resume(self, begin_s: float) -> None:  # noqa: ARG002 - as a step profiler
        """Continue after a pause between two epochs; the present step is left out."""
        self._is_disturbed = True

    def step(self, samples: int, wait_s: float, tokens: int = 0) -> None:  # noqa: ARG002
        """Continue at the boundary after a step.

        A step of our own optimizer, by which operators are timed, may look like one of the
        program's; it comes while a stage runs.
        """
        if not self._is_busy:
            self._is_busy = True
            next(self._stages, None)
            self._is_busy = False

    def close(self) -> None:
        """Undo all changes to torch, also in the middle of a stage."""
        self._stages.close()

    def _run(self) -> Generator[None]:
        memory, began = MemoryWatch(), perf_counter()
        while not memory.is_done and perf_counter() - began < MOST_S:
            yield
            memory.step()
        self._read("growth", memory.found)
        if self._counts:
            yield from self._count()
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

    def _count(self) -> Iterator[None]:
        counts: list[int] = []
        for _ in range(MAX_COUNTS):
            self._is_disturbed = False
            with OperatorCount(lambda: self.clock.is_loading) as counter:
                yield
            if not self._is_disturbed:
                counts.append(counter.calls)
        self._read("operators", lambda: operators(counts, self._device))

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
