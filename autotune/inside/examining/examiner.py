"""Examines a program that trains, for ``autotune doctor``: see ``measurement/examination``.

While the program trains on, three stages follow each other: some seconds of steps in which reads on
the host, kept graphs and memory are watched; a few steps whose operators are counted; and, between
two steps, the readings that take the thread for themselves, such as loading items.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import replace
from time import perf_counter

from torch import nn

from autotune.inside.data.feed import Feed
from autotune.inside.examining.biased_convs import ConvWatch
from autotune.inside.examining.item_costs import examine_items
from autotune.inside.examining.memory import MIN_STEPS, MemoryWatch
from autotune.inside.examining.operators import OperatorCount, operators
from autotune.inside.seams.host_reads import HostReadsSeam
from autotune.inside.seams.kept_graphs import KeptGraphsSeam
from autotune.inside.seams.parts import PartsClock
from autotune.measurement.examination import Affinity, Examination
from autotune.rig.wire import Examined

WATCHED_S = 2.0
PACED_BY = 3  # steps from which the length of a step is known
MAX_COUNTS = 3  # steps whose operators are counted


class Examiner:
    """Examines the program's steps in stages.

    ``LeadRank`` makes one for the message ``Examine``, calls ``step()`` at the end of each step in
    the program's main thread, and sends ``answer()`` to the parent when ``is_done`` is set.

    Args:
        roots: The outermost modules that are trained.
        device: Kind of the device that trains.
        feed: Returns the training loader's present feed; None if there is not exactly one loader.
        allowed: Cores that this process could use before the program began.
        counts: Whether to count operators: compiled code hides them.

    Attributes:
        clock: None; a step profiler has one here.
        found: What was seen so far.
        is_done: Whether all stages have ended.
    """

    clock: PartsClock | None = None

    def __init__(
        self,
        roots: tuple[nn.Module, ...],
        device: str,
        feed: Callable[[], Feed | None],
        allowed: tuple[int, ...],
        *,
        counts: bool,
    ) -> None:
        self._roots, self._device, self._feed = roots, device, feed
        self._allowed, self._counts = allowed, counts
        self._is_disturbed = False
        self.found = Examination()
        self.is_done = False
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

    def step(self, samples: int, wait_s: float) -> None:  # noqa: ARG002 - as a step profiler
        """Continue at the boundary after a step."""
        next(self._stages, None)

    def close(self) -> None:
        """Undo all changes to torch, also in the middle of a stage."""
        self._stages.close()

    def _run(self) -> Generator[None]:
        """Run the stages in order; each ``yield`` lasts one step of the program."""
        yield from self._watch()
        if self._counts:
            yield from self._count()
        feed = self._feed()
        self.found = replace(
            self.found,
            affinity=self._affinity(),
            items=None if feed is None else examine_items(feed.loader),
        )
        self.is_done = True

    def _watch(self) -> Iterator[None]:
        reads, graphs, memory = HostReadsSeam(), KeptGraphsSeam(), MemoryWatch()
        reads.install()
        graphs.install()
        steps, kept, began = 0, 0, perf_counter()
        kept_s = 0.0
        try:
            while not memory.is_done:
                self._is_disturbed, step_began = False, perf_counter()
                yield
                steps += 1
                reads.step(keep=not self._is_disturbed)
                graphs.step()
                if not self._is_disturbed:
                    kept += 1
                    kept_s += perf_counter() - step_began
                if steps == PACED_BY:
                    memory.set_pace((perf_counter() - began) / steps, WATCHED_S)
                if steps >= PACED_BY:
                    memory.step()
        finally:
            graphs.remove()
            reads.remove()
            self.found = replace(
                self.found,
                host_reads=reads.found(kept) if kept else (),
                kept_graphs=graphs.found() if steps >= MIN_STEPS else None,
                growth=memory.found(),
                steps=kept,
                step_s=kept_s / kept if kept else 0.0,
            )

    def _count(self) -> Iterator[None]:
        """Count the operators of a few steps, and look at convolutions in the last of them."""
        counts: list[int] = []
        watch = ConvWatch(self._roots)
        watch.install()
        try:
            for _ in range(MAX_COUNTS):
                self._is_disturbed = False
                with OperatorCount() as counter:
                    yield
                if not self._is_disturbed:
                    counts.append(counter.calls)
        finally:
            watch.remove()
        self.found = replace(
            self.found,
            operators=operators(counts, self._device),
            biased_convs=watch.found(),
        )

    def _affinity(self) -> Affinity:
        workers = []
        for child in multiprocessing.active_children():
            with suppress(OSError):  # it ended meanwhile
                if child.pid is not None:
                    workers.append(_cores(child.pid))
        return Affinity(self._allowed, _cores(0), tuple(workers))


def _cores(pid: int) -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(pid)))
