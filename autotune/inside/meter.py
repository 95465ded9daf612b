"""Meter: steps become blocks, blocks become a window; the device is synced at block edges only.

Warm-up ends by evidence, all of it over the same recent blocks: the loader's buffers neither fill
nor drain, nothing compiles or takes memory from the device, and the rates show no trend. In the
window a block that something else disturbed is measured again, within a bound. Steps longer than
half a second are too dear for that: one is left out and two are taken, where no buffers could have
served them; else the window waits until they have drained or stay full. Where it cannot wait so
long, its throughput is an upper bound, which the drained share says. When the time of a plan is up,
the window ends with what it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import monotonic, perf_counter
from typing import Literal

from autotune.machine.probes.host_load import Counters
from autotune.measurement.interference import Interference
from autotune.measurement.measurement import Block, Interval, Measurement, Memory
from autotune.measurement.outcome import Outcome
from autotune.measurement.stats import (
    STEADY_BLOCKS,
    EpochEdge,
    is_steady,
    relative_half_width,
    t_quantile,
    throughput,
)
from autotune.rig.wire import SLOW_STEP_S, WindowPlan

BLOCK_S = (
    0.1  # shorter blocks are dominated by timer and scheduler noise (seen on a 2-core machine)
)
STEADY = 0.05
BUFFERED_SHARE = 0.25
RECENT_BLOCKS = 2 * STEADY_BLOCKS
MIN_BLOCKS = 5
MIN_BLOCKS_TO_CUT = 3
MIN_EPOCHS_TO_CUT = 2
MIN_BLOCKS_OF_SLOW_STEPS = 2
# What one block may be off by where there are too few to show it: short visits of one config were
# seen to vary by 8-17 % on a busy 2-core machine (ENGINE.md), worth as much as five blocks.
FEW_BLOCKS_SPREAD = 0.1
FEW_BLOCKS_KNOWN = 4
LEVEL_SHARE = 0.02  # of the steps: by so much buffers may fill or drain and still be level
MIN_STEPS_LEVEL = 100  # fewer steps cannot tell a change of two batches from the workers' beat
MAX_DISCARDED = 10  # blocks of a window that may be measured again


@dataclass(frozen=True)
class Flow:
    """What the meter must know of the data that feeds the program.

    Attributes:
        buffered_steps: Steps that full prefetch buffers last: they must drain before any count.
        cycle_steps: Steps in which every worker delivers once; batches come in such bursts.
        steps_per_epoch: Steps between two starts of the training loader, None if unknown.
        samples_per_epoch: Samples between them, None if unknown.
        start_s: Seconds from the last start to its first batch.
        starts: How often the loader has started.
        ready_steps: Steps for which batches lie ready now, None where that cannot be seen.
        has_idle_workers: Some worker waits for room in the buffers; None where that is unseen.
    """

    buffered_steps: int = 0
    cycle_steps: int = 1
    steps_per_epoch: int | None = None
    samples_per_epoch: int | None = None
    start_s: float = 0.0
    starts: int = 0
    ready_steps: float | None = None
    has_idle_workers: bool | None = None

    @property
    def is_settled(self) -> bool:
        """Buffers are empty and the workers set the pace, or full and the program does.

        In between, with every worker busy, they fill or drain.
        """
        if self.ready_steps is None:
            return False
        return bool(self.has_idle_workers) or self.ready_steps <= self.cycle_steps


@dataclass(frozen=True)
class Instruments:
    """What the meter reads, at block edges alone.

    Attributes:
        flow: The present state of the data feed.
        sync: Waits until the device is idle.
        read_loss: The last loss, None where the program shows none.
        activity: A number that grows while something compiles or the allocator grows.
        counters: The kernel's counters, None where nothing is watched.
    """

    flow: Callable[[], Flow]
    sync: Callable[[], None]
    read_loss: Callable[[], float | None]
    activity: Callable[[], int] = lambda: 0
    counters: Callable[[], Counters | None] = lambda: None


@dataclass(frozen=True)
class _Evidence:
    """What a block's end showed, to tell whether the program has settled."""

    steps: int
    flow: Flow
    activity: int
    wait_share: float

    @property
    def is_fed_by_workers(self) -> bool:
        """The program waited for data: it went at the pace of the workers, not of buffers."""
        flow = self.flow
        if flow.ready_steps is None:
            is_empty = self.steps > flow.buffered_steps
        else:
            is_empty = flow.ready_steps < flow.cycle_steps
        return is_empty and self.wait_share >= LEVEL_SHARE

    @property
    def has_full_buffers(self) -> bool:
        """Workers keep up: one has done all it was given, the others have a batch each in hand."""
        flow = self.flow
        if flow.ready_steps is None:
            return False
        is_full = flow.ready_steps >= flow.buffered_steps - flow.cycle_steps
        return is_full and bool(flow.has_idle_workers)


@dataclass
class _Running:
    """The block being timed, in stretches between disturbances.

    Attributes:
        resumed: When the present stretch began.
        mark: When its last step ended.
        starts: Starts of the loader when it began.
        counters: The kernel's counters when it began.
    """

    resumed: float
    mark: float
    starts: int
    counters: Counters | None
    seconds: float = 0.0
    samples: int = 0
    steps: int = 0
    wait_s: float = 0.0
    edges: int = 0
    tokens: int = 0

    def skip(self, now: float, starts: int) -> None:
        """Leave out what happened since the last step."""
        self.seconds += self.mark - self.resumed
        self.edges += max(0, starts - self.starts)
        self.resumed = self.mark = now
        self.starts = starts


@dataclass
class Meter:
    """Measures one window.

    Args:
        plan: How long to warm up and to measure.
        read: What is read at block edges.
    """

    plan: WindowPlan
    read: Instruments
    phase: Literal["warm-up", "window"] = "warm-up"
    blocks: list[Block] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.read.sync()
        self._asked = self._began = perf_counter()
        self._steps = 0
        self._evidence: list[_Evidence] = []
        self._opening: _Evidence | None = None  # the last before the window, if it was seen
        self._window_evidence: list[_Evidence] = []
        self._discarded = 0
        self._counters = self.read.counters()
        self._block_steps = 1
        self._fastest_s = math.inf
        self._activity = self.read.activity()
        self._whole_epochs = False
        self._disturbed = False
        self._warmup_s = 0.0
        self._warmup_reason = ""
        self._stop_reason = ""
        self._before_window: list[Block] = []
        self._warmup_losses: list[float | None] = []
        self._run = self._new_block()

    @property
    def is_done(self) -> bool:
        """The window has ended."""
        return bool(self._stop_reason)

    @property
    def steps_to_go(self) -> int:
        """Undisturbed steps until the present block is whole, at least 1."""
        return max(1, self._block_steps - self._run.steps)

    def disturb(self) -> None:
        """Leave the present step out: the program does something besides training in it."""
        self._disturbed = True

    def pause(self) -> None:
        """The program leaves its loop between two steps: what the device still does counts."""
        if not self._disturbed and self._run.steps:
            self.read.sync()
            self._run.mark = perf_counter()

    def resume(self, begin_s: float) -> None:
        """Leave out what happened since then, but for what the new epoch took to begin."""
        if self._steps:  # before the first, a switch of the config falls into it
            self._disturbed = False
        now = max(self._run.mark, perf_counter() - begin_s)
        self._began += now - self._run.mark
        self._run.skip(now, self.read.flow().starts)

    def step(self, samples: int, wait_s: float, tokens: int = 0) -> bool:
        """Count a finished step; return whether it closed a block."""
        self._steps += 1
        run = self._run
        if self._disturbed:
            self._disturbed = False
            self.read.sync()
            now = perf_counter()
            self._fastest_s = min(self._fastest_s, now - run.mark)
            self._activity = self.read.activity()
            run.skip(now, self.read.flow().starts)
            return False
        run.samples += samples
        run.tokens += tokens
        run.wait_s += wait_s
        run.steps += 1
        run.mark = perf_counter()
        if run.steps < self._block_steps:
            return False
        self.read.sync()
        self._close_block(perf_counter())
        return True

    def go_on(self) -> None:
        """Begin the next block; what happened since the last one ended is not measured."""
        self._run = self._new_block()

    def finish(self, reason: str, *, with_what_there_is: bool = False) -> bool:
        """End the window early for *reason*, if it holds enough blocks to say anything.

        Args:
            reason: Why.
            with_what_there_is: One block is enough, if need be of the warm-up: a program as short
                as that has no better.
        """
        if with_what_there_is and not self.is_done:
            if self._run.steps:
                self.read.sync()
                self._block_steps = self._run.steps
                self._close_block(perf_counter())
            return self.is_done or self.end_now(reason)  # the last block may have settled it
        if self.phase == "window" and len(self.blocks) >= self._least_to_cut:
            self._stop_reason = self._stop_reason or reason
        return self.is_done

    def end_now(self, reason: str = Outcome.OUT_OF_TIME) -> bool:
        """End the window with what it has, in time of need with the later half of the warm-up.

        Returns:
            Whether it ended by this call: not where it had ended before, nor without any block.
        """
        if self.is_done or not (self.blocks or self._before_window):
            return False
        now = perf_counter()
        if self.phase == "warm-up":
            self._take_from_warmup(self.blocks, now, reason)
        elif not self.blocks:
            self._take_from_warmup(self._before_window, now, reason)
        self._stop_reason = f"{reason} after {now - self._asked:.1f} s"
        return True

    def _take_from_warmup(self, blocks: list[Block], now: float, reason: str) -> None:
        """Let the later half of a warm-up count: that there is a number is worth its doubts."""
        half = len(blocks) // 2
        self._opening = self._evidence[half - 1] if half else None
        self._window_evidence = self._evidence[half:]
        self.phase = "window"
        self._warmup_s = self._warmup_s or now - self._began
        self._warmup_reason = f"cut after {self._warmup_s:.0f} s: {reason}"
        self.blocks, self.losses = blocks[half:], self._warmup_losses[half:]

    def measurement(self, memory: Memory) -> Measurement:
        """Return the window as measured."""
        flow = self.read.flow()
        waits = sum(b.wait_s for b in self.blocks) / sum(b.steps for b in self.blocks)
        edge = (
            EpochEdge(max(0.0, flow.start_s - waits), flow.samples_per_epoch)
            if flow.samples_per_epoch
            else None
        )
        rate = throughput(self.blocks, edge, drained_share=self._drained_share)
        return Measurement(
            throughput=_with_few_blocks(rate.interval, self.blocks),
            blocks=tuple(self.blocks),
            warmup_s=self._warmup_s,
            warmup_reason=self._warmup_reason,
            stop_reason=self._stop_reason,
            edge_s=rate.edge_s,
            samples_per_epoch=flow.samples_per_epoch,
            losses=tuple(self.losses),
            memory=memory,
            discarded_blocks=self._discarded,
            drained_share=self._drained_share,
        )

    @property
    def _is_slow(self) -> bool:
        """No step was short so far."""
        return SLOW_STEP_S < self._fastest_s < math.inf

    @property
    def _least_to_cut(self) -> int:
        if self._is_slow:
            return MIN_BLOCKS_OF_SLOW_STEPS
        return MIN_EPOCHS_TO_CUT if self._whole_epochs else MIN_BLOCKS_TO_CUT

    @property
    def _drained_share(self) -> float:
        """Share of the window's steps that buffers gave without getting them back.

        One step more or less is the beat of the workers, not a drain.
        """
        flow = self.read.flow()
        now = flow.ready_steps
        then = None if self._opening is None else self._opening.flow.ready_steps
        steps = sum(b.steps for b in self.blocks)
        if not steps:
            return 0.0
        if self._is_slow and flow.buffered_steps:
            return min(1.0, self._most_drained(flow, then) / steps)
        if now is None or then is None:
            return 0.0
        return min(1.0, max(0.0, then - now - 1) / steps)

    def _most_drained(self, flow: Flow, then: float | None) -> float:
        """Return how many slow steps the buffers may have given, at most.

        There are too few of them to overlook the beat of the workers, or what these had in hand.
        None where the steps show that all the time workers fed the program, or kept buffers full.
        """
        opening = [] if self._opening is None else [self._opening]
        within = self._window_evidence
        if _are_fed([*opening, *within]) or _are_full(within):
            return 0.0
        held = flow.buffered_steps if then is None else then
        return max(0.0, held + flow.cycle_steps - (flow.ready_steps or 0.0))

    def _new_block(self) -> _Running:
        starts = self.read.flow().starts
        now = perf_counter()
        return _Running(now, now, starts, self._counters)

    def _close_block(self, now: float) -> None:
        run, flow = self._run, self.read.flow()
        run.mark = now
        run.skip(now, flow.starts)
        block = Block(
            run.samples,
            run.steps,
            run.seconds,
            run.wait_s,
            run.edges,
            run.tokens,
            monotonic(),
            self._interference(run),
        )
        if self.phase == "window" and block.is_disturbed and self._may_discard(block):
            self._discarded += 1
            self._began += block.seconds
            return
        was_slow = self._is_slow
        self._fastest_s = min(self._fastest_s, block.seconds / run.steps)
        if self.phase == "window" and was_slow and not self._is_slow:
            self._close_window()
        self.blocks.append(block)
        self.losses.append(self.read.read_loss())
        wait_share = block.wait_s / block.seconds
        evidence = _Evidence(self._steps, flow, self.read.activity(), wait_share)
        if self.phase == "window":
            self._window_evidence.append(evidence)
        else:
            self._warmup_losses.append(self.losses[-1])
            self._evidence.append(evidence)
            self._block_steps = self._steps_for(block.seconds / run.steps)
            self._end_warmup_if_steady(now)
            self._activity = self._evidence[-1].activity
        if self.phase == "window":
            self._end_window_if_decided(now)
        if not self.is_done and self._has_no_time_for(block):
            self.end_now()

    def _interference(self, run: _Running) -> Interference | None:
        self._counters = self.read.counters()  # reading takes 0.2 ms: once for two blocks
        if self._counters is None or run.counters is None:
            return None
        return self._counters.since(run.counters)

    def _has_no_time_for(self, block: Block) -> bool:
        """Another block like this would end after the plan's time; until then there are enough."""
        if self.plan.most_s is None:
            return False
        left_s = self._asked + self.plan.most_s - perf_counter()
        has_enough = self.phase == "window" and len(self.blocks) >= self._least_to_cut
        return left_s <= 0 or (has_enough and left_s < block.seconds)

    def _may_discard(self, block: Block) -> bool:
        """A disturbed block is measured again as long as that takes no longer than the window."""
        return (
            self._discarded < MAX_DISCARDED
            and (self._discarded + 1) * block.seconds <= self.plan.window_max_s
        )

    def _steps_for(self, step_s: float) -> int:
        """Steps in a block of BLOCK_S, in whole cycles of the workers.

        Whole epochs where an epoch is shorter than that, or where the buffers hold much of one:
        there steps are fast at first and slow at the end, and only an epoch shows the flow.
        """
        flow = self.read.flow()
        steps = flow.cycle_steps * max(1, math.ceil(BLOCK_S / step_s / flow.cycle_steps))
        epoch = flow.steps_per_epoch
        self._whole_epochs = epoch is not None and (
            epoch <= steps or BUFFERED_SHARE * epoch <= flow.buffered_steps
        )
        return epoch * math.ceil(steps / epoch) if epoch and self._whole_epochs else steps

    def _end_warmup_if_steady(self, now: float) -> None:
        elapsed_s = now - self._began
        recent = self.blocks[-RECENT_BLOCKS:]
        plain = [b for b in recent if not b.epoch_edges]
        rates = [b.samples_per_s for b in (plain if len(plain) >= STEADY_BLOCKS else recent)]
        unsettled = [
            what
            for what, is_over in (
                ("buffers still filling or draining", self._is_level()),
                ("still compiling or taking memory", self._is_quiet()),
                ("still drifting", self._is_slow or is_steady(rates, tolerance=STEADY)),
            )
            if not is_over
        ]
        if elapsed_s >= self.plan.warmup_min_s and not unsettled:
            before_last_s = elapsed_s - self.blocks[-1].seconds
            self._open_window(elapsed_s, "steady")
            if self._is_slow and before_last_s >= self.plan.warmup_min_s:
                self._count_the_last()
        elif elapsed_s >= self.plan.warmup_max_s and len(self.blocks) >= self._least_to_cut:
            reason = ", ".join(unsettled) or "hardly settled"
            self._open_window(elapsed_s, f"cut after {elapsed_s:.0f} s: {reason}")

    def _is_level(self) -> bool:
        """Over the recent blocks as much was produced as consumed."""
        recent = self._recent_evidence
        first, last = recent[0], recent[-1]
        if self._is_slow and last.flow.buffered_steps:
            return len(recent) == MIN_BLOCKS_OF_SLOW_STEPS and (
                _are_fed(recent) or _are_full(recent)
            )
        now, then = last.flow.ready_steps, first.flow.ready_steps
        if now is None or then is None:
            return self._steps >= 2 * last.flow.buffered_steps
        steps = last.steps - first.steps
        is_even = steps >= MIN_STEPS_LEVEL and abs(now - then) <= LEVEL_SHARE * steps
        return is_even or all(evidence.flow.is_settled for evidence in recent)

    def _is_quiet(self) -> bool:
        recent = self._recent_evidence
        before = self._activity if self._is_slow else recent[0].activity
        return before == recent[-1].activity

    @property
    def _recent_evidence(self) -> list[_Evidence]:
        return self._evidence[-(MIN_BLOCKS_OF_SLOW_STEPS if self._is_slow else STEADY_BLOCKS) :]

    def _open_window(self, warmup_s: float, reason: str) -> None:
        self.phase = "window"
        self._warmup_s, self._warmup_reason = warmup_s, reason
        self._began = perf_counter()
        self._opening, self._window_evidence = self._evidence[-1], []
        self._before_window, self.blocks, self.losses = self.blocks, [], []

    def _count_the_last(self) -> None:
        """Let the window begin with the block that showed that it may begin: steps are dear."""
        last = self._before_window[-1]
        self.blocks, self.losses = [last], self._warmup_losses[-1:]
        self._began -= last.seconds
        self._opening = self._evidence[-2] if len(self._evidence) > 1 else None
        self._window_evidence = self._evidence[-1:]

    def _close_window(self) -> None:
        """Go back to the warm-up: steps were taken for slow that are not."""
        self.phase = "warm-up"
        self._began = self._asked
        self.blocks, self._before_window = self._before_window, []
        self.losses = self._warmup_losses[:]

    def _end_window_if_decided(self, now: float) -> None:
        elapsed_s = now - self._began
        rates = [b.samples_per_s for b in self.blocks]
        half = relative_half_width(rates)
        if self.plan.give_up_below is not None and len(rates) >= self._least_to_cut:
            best_case = sorted(rates)[len(rates) // 2] * (1 + half)
            if best_case < self.plan.give_up_below:
                self._stop_reason = "clearly slower"
                return
        enough = len(rates) >= MIN_BLOCKS and elapsed_s >= self.plan.window_min_s
        if enough and half <= self.plan.half_width and self._drained_share <= LEVEL_SHARE:
            self._stop_reason = f"interval within {self.plan.half_width:.0%}"
        elif elapsed_s >= self.plan.window_max_s and len(rates) >= self._least_to_cut:
            self._stop_reason = f"cut after {elapsed_s:.1f} s"


def _are_fed(evidence: list[_Evidence]) -> bool:
    """In each block the workers set the pace; the first shows that no buffer served the next."""
    return len(evidence) > 1 and all(e.is_fed_by_workers for e in evidence)


def _are_full(evidence: list[_Evidence]) -> bool:
    """At the end of each block buffers were full; by the last each worker had to load a batch."""
    last = evidence[-1]
    was_put_to_work = len(evidence) > 1 and last.steps > last.flow.cycle_steps
    return was_put_to_work and all(e.has_full_buffers for e in evidence)


def _with_few_blocks(interval: Interval, blocks: list[Block]) -> Interval:
    """Widen the interval of one or two blocks, which cannot show how far blocks differ.

    Student's t on the spread of the blocks and of those seen elsewhere, pooled.
    """
    count = len(blocks)
    if count >= MIN_BLOCKS_TO_CUT:
        return interval
    rates = [b.samples_per_s for b in blocks]
    apart = sum((r / (sum(rates) / count) - 1) ** 2 for r in rates)
    degrees = FEW_BLOCKS_KNOWN + count - 1
    spread = math.sqrt((FEW_BLOCKS_KNOWN * FEW_BLOCKS_SPREAD**2 + apart) / degrees)
    half = t_quantile(degrees) * spread / math.sqrt(count)
    low, high = interval.estimate / (1 + half), interval.estimate * (1 + half)
    return replace(interval, low=min(interval.low, low), high=max(interval.high, high))
