"""Examines a program that trains, for ``autotune doctor``: see ``measurement/examination``.

While the program trains on, three stages follow each other: some seconds of steps in which reads on
the host, kept graphs and memory are watched; a few steps whose operators are counted; and, between
two steps, the readings that take the thread for themselves, such as loading items.
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
from statistics import median
from time import perf_counter
from typing import Any

from torch import nn

from autotune.inside.data.feed import Feed
from autotune.inside.examining.biased_convs import ConvWatch
from autotune.inside.examining.item_costs import examine_items
from autotune.inside.examining.memory import MIN_STEPS, MemoryWatch
from autotune.inside.examining.operators import OperatorCount, operators
from autotune.inside.hubs.backward import BackwardHub
from autotune.inside.listener import BatchClock
from autotune.inside.seams.host_reads import HostReadsSeam
from autotune.inside.seams.kept_graphs import GraphWatch
from autotune.measurement.examination import Affinity, Examination
from autotune.rig.wire import Examined

logger = logging.getLogger("autotune")
WATCHED_S = 2.0
PACED_BY = 5  # steps from which the length of a step is known
MOST_S = 20.0  # for watching, however long a step takes
MAX_COUNTS = 3  # steps whose operators are counted


class LoadingClock:
    """Knows whether the program fetches a batch now; the step tracker tells it.

    Attributes:
        is_loading: Whether it does.
    """

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
        roots: The outermost modules that are trained.
        device: Kind of the device that trains.
        feed: Returns the training loader's present feed; None if there is not exactly one loader.
        allowed: Cores that the parent may use.
        backward: The hub of backward passes.
        counts: Whether to count operators: compiled code hides them.

    Attributes:
        clock: Told when the program fetches a batch.
        found: What was seen so far.
        is_done: Whether all stages have ended.
    """

    def __init__(
        self,
        roots: tuple[nn.Module, ...],
        device: str,
        feed: Callable[[], Feed | None],
        allowed: tuple[int, ...],
        backward: BackwardHub,
        *,
        counts: bool,
    ) -> None:
        self._roots, self._device, self._feed = roots, device, feed
        self._allowed, self._counts = allowed, counts
        self._backward = backward
        self._is_disturbed = False
        self._loading = LoadingClock()
        self.clock: BatchClock = self._loading
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
        """Run the stages in order; each ``yield`` lasts one step of the program."""
        yield from self._watch()
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

    def _watch(self) -> Iterator[None]:
        reads, graphs, memory = (
            HostReadsSeam(self._device, lambda: self._loading.is_loading),
            GraphWatch(),
            MemoryWatch(),
        )
        reads.install()
        self._backward.join(graphs)
        steps, kept, kept_s, began = 0, 0, 0.0, perf_counter()
        taken_s: list[float] = []  # of the first steps; others on the machine may stretch some
        try:
            while not memory.is_done:
                self._is_disturbed, step_began = False, perf_counter()
                yield
                now = perf_counter()
                steps += 1
                if steps <= PACED_BY:
                    taken_s.append(now - step_began)
                reads.step(keep=not self._is_disturbed)
                graphs.step()
                if not self._is_disturbed:
                    kept += 1
                    kept_s += now - step_began
                if steps == PACED_BY:
                    memory.set_pace(median(taken_s), WATCHED_S)
                if steps >= PACED_BY:
                    memory.step()
                if steps >= MIN_STEPS and now - began > MOST_S:
                    break
        finally:
            self._backward.leave(graphs)
            reads.remove()
            self.found = replace(self.found, steps=kept, step_s=kept_s / kept if kept else 0.0)
            self._read("host_reads", lambda: reads.found(kept) if kept else ())
            self._read("kept_graphs", lambda: graphs.found() if steps >= MIN_STEPS else None)
            self._read("growth", memory.found)

    def _count(self) -> Iterator[None]:
        """Count the operators of a few steps, and look at convolutions meanwhile."""
        counts: list[int] = []
        watch = ConvWatch(self._roots)
        watch.install()
        try:
            for _ in range(MAX_COUNTS):
                self._is_disturbed = False
                with OperatorCount(lambda: self._loading.is_loading) as counter:
                    yield
                if not self._is_disturbed:
                    counts.append(counter.calls)
        finally:
            watch.remove()
        self._read("operators", lambda: operators(counts, self._device))
        self._read("biased_convs", watch.found)

    def _affinity(self) -> Affinity:
        workers = []
        for child in multiprocessing.active_children():
            with suppress(OSError):  # it ended meanwhile
                if child.pid is not None:
                    workers.append(_cores(child.pid))
        return Affinity(self._allowed, _training_cores(set(self._allowed)), tuple(workers))


def _training_cores(allowed: set[int]) -> tuple[int, ...]:
    """Return the cores of the main thread, and of threads that OpenMP has bound to others."""
    main = _cores(threading.main_thread().native_id or 0)
    of_python = {thread.native_id for thread in threading.enumerate()}
    used = set(main)
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) not in of_python:
            with suppress(OSError):  # it ended meanwhile
                cores = set(_cores(int(task.name)))
                used |= cores if cores < allowed else set()
    return tuple(sorted(used))


def _cores(pid: int) -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(pid)))
