"""Measure where a step's time goes, and how fast the program is with one part taken away.

While the program trains on, stages follow each other: steps with a clock at each part; one step
whose operators and floating-point operations are counted; steps without anomaly detection, if that
is on; steps on one cached batch, so without loading; the loader alone, without computing; and a
look at what it delivers. The search derives the bottleneck from the results.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from autotune.inside.data.feed import Feed
from autotune.inside.examining.batches import look_at_batches
from autotune.inside.examining.operators import OperatorCount, Stopwatch, call_s
from autotune.inside.seam_set import SeamSet
from autotune.inside.seams.parts import PartsClock, PartsSeam
from autotune.inside.turns import Edges
from autotune.measurement.examination import Operators, StepBreakdown
from autotune.measurement.interval import Interval
from autotune.measurement.turn import Played, rate

logger = logging.getLogger("autotune")
MIN_STEPS = 10
MAX_STEPS = 200
BLOCK_S = 0.1
MIN_BLOCKS = 5
MIN_TIMED_STEPS = 4  # of a stage that changes something; the first is left out
MAX_COUNTS = 3  # steps whose operations are counted at most


class StepProfiler:
    """Profiles the program's steps in stages.

    Args:
        stage_s: Seconds that each stage measures.
        feed: Returns the training loader's present feed. It returns None if there is not exactly
            one loader or another thread reads it; the two stages that need a feed are then skipped.
        is_eager: Whether the model runs as written, so that operators can be counted: compiled code
            hides them.

    Attributes:
        clock: Told when the program requests a batch and when it has it; None in later stages.
        breakdown: What was measured so far; parts that are not measured yet are None.
    """

    def __init__(
        self,
        stage_s: float,
        edges: Edges,
        seams: SeamSet,
        feed: Callable[[], Feed | None],
        *,
        is_eager: bool,
    ) -> None:
        self._stage_s, self._edges = stage_s, edges
        self._passes = seams.loader.passes
        self._feed = feed
        self._is_eager = is_eager
        self._is_disturbed = False
        clock = PartsClock(edges)
        self.clock: PartsClock | OperatorCount | None = clock
        self._parts = PartsSeam(clock, seams.model.forward, seams.hubs)
        self._samples = 0  # of the step that ended last
        self.breakdown = StepBreakdown()
        self.is_done = False
        self._stages = self._run()
        next(self._stages)

    def disturb(self) -> None:
        """Leave out the present step."""
        self._is_disturbed = True

    def resume(self) -> None:
        """Continue with the step that begins now, after a pause between two epochs."""
        if isinstance(self.clock, PartsClock):
            self._is_disturbed = False
            self.clock.start()
        else:
            self._is_disturbed = True  # the counter has seen what was computed in between

    def step(self, samples: int, wait_s: float, tokens: int = 0) -> None:  # noqa: ARG002
        """Continue at the boundary after a step."""
        self._samples = samples
        next(self._stages, None)

    def close(self) -> None:
        """Undo all changes to torch and the loader, also in the middle of a stage."""
        self._stages.close()

    def _run(self) -> Generator[None]:
        step_s = yield from self._split()
        if self._is_eager:
            yield from self._count(step_s)
        if torch.is_anomaly_enabled():
            yield from self._without_anomaly()
        if self._feed() is not None:
            yield from self._without_data()
        self._time_calls("call_s")  # the workers have filled their buffers, and rest
        if (feed := self._feed()) is not None:  # asked again: a new epoch may have begun since
            interval = loader_alone(feed, self._stage_s)
            if feed.present.loader.num_workers:
                self._time_calls("call_while_loading_s", feed.take)
            self.breakdown = replace(self.breakdown, loader_throughput=interval)
            with _surviving():
                # A quarter: a search waits for it, and batches with padding are fast to load
                batches = look_at_batches(feed, self._stage_s / 4)
                self.breakdown = replace(self.breakdown, batches=batches)
        self.is_done = True

    def _split(self) -> Generator[None, None, float]:
        """Record the parts of a step, and return its seconds in which nobody else had its core."""
        clock = self.clock
        assert isinstance(clock, PartsClock), "the split is the first stage"
        self._parts.install()
        watch = Stopwatch()
        try:
            while clock.steps < MAX_STEPS:
                self._is_disturbed = False
                clock.start()
                yield
                clock.stop(keep=not self._is_disturbed)
                is_long = watch.read()[1] > self._stage_s
                if is_long and clock.steps >= MIN_STEPS:
                    break
        finally:
            self._parts.remove()
            self.clock = None
        alone_s, every_s = watch.read()
        split = clock.split()
        self.breakdown = replace(self.breakdown, split=split)
        return 0.0 if split is None else split.step_s * alone_s / every_s

    def _count(self, step_s: float) -> Iterator[None]:
        """Run a step under counters, and record its operators and floating-point operations.

        If each of ``MAX_COUNTS`` steps contains something else, such as an evaluation, the smallest
        count is taken. A count of 0 means that the counter did not see the model's operations.
        """
        counted: list[tuple[int, int]] = []
        while len(counted) < MAX_COUNTS:
            self._is_disturbed = False
            flops = FlopCounterMode(display=False)
            try:
                with flops, OperatorCount() as calls:
                    self.clock = calls
                    yield
            finally:
                self.clock = None
            counted.append((flops.get_total_flops(), calls.calls))
            if not self._is_disturbed:
                del counted[:-1]
                break
        flops_per_step, per_step = map(min, zip(*counted, strict=True))
        operators = Operators(per_step, 0.0, step_s) if per_step else None
        self.breakdown = replace(
            self.breakdown, flops_per_step=float(flops_per_step) or None, operators=operators
        )

    def _time_calls(self, name: str, between: Callable[[], object] = lambda: None) -> None:
        """Record what calling an operator costs now, if the operators were counted."""
        operators = self.breakdown.operators
        if operators is None:
            return
        with _surviving():
            device = "cuda" if self._edges.run_ahead else "cpu"
            taken: dict[str, Any] = {name: call_s(device, between)}
            self.breakdown = replace(self.breakdown, operators=replace(operators, **taken))

    def _without_data(self) -> Iterator[None]:
        self._passes.replays = True
        try:
            found = yield from self._timed()  # its first step takes the batch that is cached
        finally:
            self._passes.replays = False
        self.breakdown = replace(self.breakdown, synthetic_data_throughput=found)

    def _without_anomaly(self) -> Iterator[None]:
        checks_nan = torch.is_anomaly_check_nan_enabled()
        torch.autograd.set_detect_anomaly(mode=False)
        try:
            found = yield from self._timed()
        finally:
            torch.autograd.set_detect_anomaly(mode=True, check_nan=checks_nan)
        self.breakdown = replace(self.breakdown, without_anomaly_throughput=found)

    def _timed(self) -> Generator[None, None, Interval]:
        """Return the samples/s of steps from now on; the first step is left out."""
        self._is_disturbed = False
        yield
        self._edges.settle()
        ends, samples = [perf_counter()], list[int]()
        while ends[-1] - ends[0] < self._stage_s or len(samples) < MIN_TIMED_STEPS:
            yield
            samples.append(self._samples)
            ends.append(perf_counter())
        self._edges.settle()
        ends[-1] = perf_counter()
        steps = [Played(b - a, n) for (a, b), n in zip(pairwise(ends), samples, strict=True)]
        return rate(steps)


@contextmanager
def _surviving() -> Iterator[None]:
    """Have the program go on, and the profile without this part, whatever fails in it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - batches and modes of torch may be any
        logger.warning("autotune: a part of a step's profile failed: %r", error)


def loader_alone(feed: Feed, seconds: float) -> Interval:
    """Return the samples/s that a feed delivers if nobody computes with them.

    Prefetched batches are taken out first, because they would make the loader look faster than it
    is: for at most *seconds*. What is left is measured for at least *seconds*.
    """
    until = perf_counter() + seconds
    loader = feed.present.loader
    for _ in range(loader.num_workers * (loader.prefetch_factor or 0)):
        if perf_counter() < until:
            feed.take()
    blocks: list[Played] = []
    until = perf_counter() + seconds
    while perf_counter() < until or len(blocks) < MIN_BLOCKS:
        began, samples = perf_counter(), 0
        while perf_counter() - began < BLOCK_S:
            # Workers deliver in bursts of one batch each, so whole rounds are measured.
            for _ in range(max(1, loader.num_workers)):
                samples += feed.take()[1]
        blocks.append(Played(perf_counter() - began, samples))
    return rate(blocks)
