"""Dissection: where a step's time goes, and what the program reaches with one part taken out.

Four stages, one after the other, while the program trains on: steps with a clock at each part; one
step whose floating-point operations are counted; a window on one cached batch; the loader alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from time import perf_counter

from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from autotune.inside.data.feed import Feed
from autotune.inside.meter import Flow, Instruments, Meter
from autotune.inside.seams import SeamSet
from autotune.inside.seams.parts import PartsClock, PartsSeam
from autotune.measurement.measurement import Block, Interval, StepBreakdown
from autotune.measurement.stats import throughput
from autotune.rig.wire import WindowPlan

MIN_STEPS = 10
MAX_STEPS = 200
BLOCK_S = 0.1
MIN_BLOCKS = 5
MAX_COUNTS = 3  # of the operations of a step


class Dissection:
    """Takes the program apart; driven like a meter, once at each border between two steps.

    Args:
        plan: How long the window of a ceiling lasts.
        read: What the meter of a ceiling reads at block edges.
        seams: Of this process.
        feed: Returns the training loader's feed; None without exactly one.
        counts_flops: The model runs as written: compiled code hides its operations.
    """

    def __init__(
        self,
        plan: WindowPlan,
        read: Instruments,
        seams: SeamSet,
        feed: Callable[[], Feed | None],
        *,
        counts_flops: bool,
    ) -> None:
        self._plan = plan
        self._read = replace(read, flow=Flow)
        self._loader_seam = seams.loader
        self._feed = feed
        self._counts_flops = counts_flops
        self._is_disturbed = False
        roots = tuple(seams.forward.roots)
        self.clock: PartsClock | None = PartsClock(with_events=_trains_on_cuda(roots))
        self._parts = PartsSeam(self.clock, roots, seams.optimizer)
        self._meter: Meter | None = None
        self.breakdown = StepBreakdown()
        self.is_done = False
        self._stages = self._run()
        next(self._stages)

    def disturb(self) -> None:
        """Leave the present step out: the program does something besides training in it."""
        self._is_disturbed = True
        if self._meter is not None:
            self._meter.disturb()

    def resume(self, begin_s: float) -> None:
        """Leave out what the program did between two epochs; a step begins here."""
        if self._meter is not None:
            self._meter.resume(begin_s)
        elif self.clock is not None:
            self._is_disturbed = False
            self.clock.start()
        else:
            self._is_disturbed = True  # what was computed meanwhile was counted

    def step(self, samples: int, wait_s: float) -> None:
        """Go on at the border after a step."""
        if self._meter is not None:
            closed_a_block = self._meter.step(samples, wait_s)
            if not self._meter.is_done:
                if closed_a_block:
                    self._meter.go_on()
                return
        next(self._stages, None)

    def close(self) -> None:
        """Put everything back, also in the middle."""
        self._stages.close()

    def _run(self) -> Generator[None]:
        """The stages in order; each ``yield`` is one step of the program."""
        yield from self._split()
        if self._counts_flops:
            yield from self._count_flops()
        if self._feed() is not None:
            yield from self._without_data()
        if (feed := self._feed()) is not None:  # of the present epoch
            interval = loader_alone(feed, self._plan.window_max_s)
            self.breakdown = replace(self.breakdown, loader_throughput=interval)
        self.is_done = True

    def _split(self) -> Iterator[None]:
        clock = self.clock
        assert clock is not None, "the split is the first stage"
        self._parts.install()
        began = perf_counter()
        try:
            while clock.steps < MAX_STEPS:
                self._is_disturbed = False
                clock.start()
                yield
                clock.stop(keep=not self._is_disturbed)
                is_long = perf_counter() - began > self._plan.window_max_s
                if is_long and clock.steps >= MIN_STEPS:
                    break
        finally:
            self._parts.remove()
            self.clock = None
        self.breakdown = replace(self.breakdown, split=clock.split())

    def _count_flops(self) -> Iterator[None]:
        """One step under torch's counter; a program that it cannot follow goes uncounted.

        A step with an evaluation in it is not counted but the next one. Where each has something in
        it besides, the least is taken.
        """
        totals: list[int] = []
        while len(totals) < MAX_COUNTS:
            self._is_disturbed = False
            counter = FlopCounterMode(display=False)
            counter.__enter__()
            try:
                yield
            finally:
                counter.__exit__(None, None, None)
            totals.append(counter.get_total_flops())
            if not self._is_disturbed:
                del totals[:-1]
                break
        self.breakdown = replace(self.breakdown, flops_per_step=float(min(totals)) or None)

    def _without_data(self) -> Iterator[None]:
        self._loader_seam.replays = True
        self._meter = meter = Meter(self._plan, self._read)
        meter.disturb()
        try:
            yield
        finally:
            self._loader_seam.replays = False
            self._meter = None
        interval = throughput(meter.blocks, None).interval
        self.breakdown = replace(self.breakdown, synthetic_data_throughput=interval)


def loader_alone(feed: Feed, seconds: float) -> Interval:
    """Return samples/s of a feed that nobody computes with, once its buffers are empty."""
    until = perf_counter() + seconds
    for _ in range(feed.buffered_batches):
        if perf_counter() < until:
            feed.take()
    blocks: list[Block] = []
    until = perf_counter() + seconds
    while perf_counter() < until or len(blocks) < MIN_BLOCKS:
        began, samples, steps = perf_counter(), 0, 0
        while perf_counter() - began < BLOCK_S:
            for _ in range(max(1, feed.num_workers)):
                samples += feed.take()
                steps += 1
        elapsed_s = perf_counter() - began
        blocks.append(Block(samples, steps, elapsed_s, elapsed_s))
    return throughput(blocks, None).interval


def _trains_on_cuda(roots: Sequence[nn.Module]) -> bool:
    return any(p.device.type == "cuda" for root in roots for p in root.parameters())
