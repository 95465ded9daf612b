"""Turn timed steps into blocks, and blocks into a measurement window.

The device is synchronized only at block edges, because a sync in each step would slow the program
down.

The warm-up ends when recent blocks show that the program is steady: the loader's buffers neither
fill nor drain, nothing compiles or takes memory from the device, and the rates show no trend. In
the window, a block that other processes disturbed is measured again, within limits.

Steps longer than half a second (``SLOW_STEP_S``) are too expensive for that. One such
step is left out and two are measured, if prefetched batches cannot have served them. Otherwise the
window waits until the buffers are drained or stay full. If there is no time for that, the
throughput is an upper bound, and the drained share of the measurement says so. When the time of a
plan is up, the window ends with the blocks that it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import monotonic, perf_counter
from typing import Literal

from autotune.machine.probes.host_load import Counters
from autotune.measurement.block import Block
from autotune.measurement.interference import Interference
from autotune.measurement.interval import Interval
from autotune.measurement.measurement import Measurement
from autotune.measurement.memory import Memory
from autotune.measurement.outcome import Outcome
from autotune.measurement.stats import STEADY_BLOCKS, is_steady, relative_half_width, t_quantile
from autotune.measurement.throughput import EpochEdge, throughput
from autotune.rig.wire import SLOW_STEP_S, WindowPlan

STEADY = 0.05  # relative tolerance within which recent rates show no trend
BUFFERED_SHARE = 0.25  # of an epoch; if the buffers hold that much, blocks are whole epochs
RECENT_BLOCKS = 2 * STEADY_BLOCKS
MIN_BLOCKS = 5
# Blocks that a window or a warm-up must hold before it may be cut short: in general, if each block
# consists of whole epochs, and if steps are slow.
MIN_BLOCKS_TO_CUT = 3
MIN_EPOCHS_TO_CUT = 2
MIN_BLOCKS_OF_SLOW_STEPS = 2
# Assumed spread of a block's rate if too few blocks show it themselves. Short visits of one config
# were seen to vary by 8-17 % on a busy 2-core machine (ENGINE.md). The assumption has the weight of
# five blocks, which have four degrees of freedom.
FEW_BLOCKS_SPREAD = 0.1
FEW_BLOCKS_KNOWN = 4
LEVEL_SHARE = 0.02  # of the steps: buffers that fill or drain by less are level
MIN_STEPS_LEVEL = 100  # with fewer, the share is below two steps, which the workers' bursts explain
MAX_DISCARDED = 10  # blocks of a window that may be measured again


@dataclass(frozen=True)
class Flow:
    """The state of the data pipeline that feeds the program, at one moment.

    Attributes:
        buffered_steps: Steps that full prefetch buffers can feed. While the buffers drain, steps
            are faster than they stay.
        cycle_steps: Steps in which every worker delivers once; batches come in such bursts.
        steps_per_epoch: Steps between two starts of the training loader; None if unknown.
        samples_per_epoch: Samples between them; None if unknown.
        start_s: Seconds from the loader's last start to its first batch.
        starts: How often the loader has started.
        ready_steps: Steps for which batches lie ready now; None if that cannot be seen.
        has_idle_workers: Whether some worker waits for room in the buffers; None if that cannot be
            seen.
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
        """Whether the buffers are empty or full, so that a steady rate is possible.

        With empty buffers the workers set the pace, with full ones the program does. In between,
        with every worker busy, the buffers fill or drain. False if the buffers cannot be seen.
        """
        if self.ready_steps is None:
            return False
        return bool(self.has_idle_workers) or self.ready_steps <= self.cycle_steps


@dataclass(frozen=True)
class Instruments:
    """The readings that the meter takes at block edges.

    Attributes:
        flow: Returns the present state of the data pipeline.
        sync: Waits until the device is idle.
        read_loss: Returns the last loss; None if the program shows none.
        activity: Returns a number that grows while something compiles or the allocator grows.
        counters: Returns the kernel's counters, which show what disturbed a block; None if nothing
            is watched.
        faults: Returns the minor page faults of the process so far.
    """

    flow: Callable[[], Flow]
    sync: Callable[[], None]
    read_loss: Callable[[], float | None]
    activity: Callable[[], int] = lambda: 0
    counters: Callable[[], Counters | None] = lambda: None
    faults: Callable[[], int] = lambda: 0


@dataclass(frozen=True)
class _Evidence:
    """What was seen at the end of a block, to judge whether the program has settled.

    Attributes:
        steps: Number of steps since the meter began.
        flow: The state of the data pipeline.
        activity: The instruments' number for compilation and memory growth.
        wait_share: Share of the block in which the program waited for batches, 0 to 1.
    """

    steps: int
    flow: Flow
    activity: int
    wait_share: float

    @property
    def is_fed_by_workers(self) -> bool:
        """Whether the workers set the pace: the buffers were empty and the program waited."""
        flow = self.flow
        if flow.ready_steps is None:
            is_empty = self.steps > flow.buffered_steps
        else:
            is_empty = flow.ready_steps < flow.cycle_steps
        return is_empty and self.wait_share >= LEVEL_SHARE

    @property
    def has_full_buffers(self) -> bool:
        """Whether the workers keep up: one has no room for more, the others hold one batch each."""
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
        starts: Number of starts of the loader when it began.
        counters: The kernel's counters when the block began.
        faults_resumed: Page faults of the process when the present stretch began.
        faults_mark: The same when its last step ended.
        seconds: Length of the stretches before the present one.
        faults: Page faults in these stretches.
        edges: Number of starts of the loader within the block.
    """

    resumed: float
    mark: float
    starts: int
    counters: Counters | None
    faults_resumed: int
    faults_mark: int
    seconds: float = 0.0
    faults: int = 0
    samples: int = 0
    steps: int = 0
    wait_s: float = 0.0
    edges: int = 0
    tokens: int = 0

    def skip(self, now: float, starts: int, faults: int) -> None:
        """Leave out what happened since the last step, and begin a new stretch."""
        self.seconds += self.mark - self.resumed
        self.faults += self.faults_mark - self.faults_resumed
        self.faults_resumed = self.faults_mark = faults
        self.edges += max(0, starts - self.starts)
        self.resumed = self.mark = now
        self.starts = starts


@dataclass
class Meter:
    """Measures one config: a warm-up, then a window of blocks.

    ``LeadRank`` and ``StepProfiler`` make one for each window and call ``step()`` after each step,
    in the program's main thread. When a window's time is up, ``LeadRank`` also calls ``end_now()``
    from a timer thread, under its lock.

    Args:
        plan: How long to warm up and to measure.
        read: What is read at block edges.

    Attributes:
        phase: Whether the meter warms up or measures the window.
        blocks: The blocks of the present phase; after the end, those of the window.
        losses: The loss at the end of each of these blocks.
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
        self._opening: _Evidence | None = None  # the last before the window; None if there was none
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
        """Whether the window has ended."""
        return bool(self._stop_reason)

    @property
    def has_run_out(self) -> bool:
        """Whether the window ended because the plan's time was up."""
        return self._stop_reason.startswith(Outcome.OUT_OF_TIME)

    @property
    def steps_to_go(self) -> int:
        """Undisturbed steps that the present block still needs, at least 1.

        All ranks meet when a block is complete, so they are told this number in advance.
        """
        return max(1, self._block_steps - self._run.steps)

    def disturb(self) -> None:
        """Leave the present step out, because the program does something besides training in it."""
        self._disturbed = True

    def pause(self) -> None:
        """Note that the program leaves its loop between two steps.

        The device may still work on the last step, so the step ends when the device is idle.
        """
        if not self._disturbed and self._run.steps:
            self.read.sync()
            self._run.mark, self._run.faults_mark = perf_counter(), self.read.faults()

    def resume(self, begin_s: float) -> None:
        """Leave out the time since ``pause()``, except what the new epoch took to begin.

        Args:
            begin_s: Seconds that the beginning took.
        """
        if self._steps:  # the first step stays disturbed: it contains the switch of the config
            self._disturbed = False
        now = max(self._run.mark, perf_counter() - begin_s)
        self._began += now - self._run.mark
        self._run.skip(now, self.read.flow().starts, self.read.faults())

    def step(self, samples: int, wait_s: float, tokens: int = 0) -> bool:
        """Count a finished step; return whether it closed a block.

        Args:
            samples: Samples of the step.
            wait_s: Seconds of the step in which the program waited for batches.
            tokens: Token ids of the step; 0 if its input is not token ids.
        """
        self._steps += 1
        run = self._run
        if self._disturbed:
            self._disturbed = False
            self.read.sync()  # work of this step must not be left on the device for the next one
            now = perf_counter()
            self._fastest_s = min(self._fastest_s, now - run.mark)
            self._activity = self.read.activity()
            run.skip(now, self.read.flow().starts, self.read.faults())
            return False
        run.samples += samples
        run.tokens += tokens
        run.wait_s += wait_s
        run.steps += 1
        run.mark, run.faults_mark = perf_counter(), self.read.faults()
        if run.steps < self._block_steps:
            return False
        self.read.sync()
        self._close_block(perf_counter())
        return True

    def go_on(self) -> None:
        """Begin the next block; the time since the last one ended is not measured."""
        self._run = self._new_block()

    def finish(self, reason: str, *, with_what_there_is: bool = False) -> bool:
        """End the window early if it holds enough blocks for a result; return whether it has ended.

        Args:
            reason: Why the window ends, as a clause for the user.
            with_what_there_is: Whether one block is enough, even one of the warm-up. A program that
                ends within seconds cannot give more.
        """
        if with_what_there_is and not self.is_done:
            if self._run.steps:
                self.read.sync()
                self._block_steps = self._run.steps
                self._close_block(perf_counter())
            return self.is_done or self.end_now(reason)  # that block may have ended the window
        if self.phase == "window" and len(self.blocks) >= self._least_to_cut:
            self._stop_reason = self._stop_reason or reason
        return self.is_done

    def end_now(self, reason: str = Outcome.OUT_OF_TIME) -> bool:
        """End the window with what it has, if necessary with the later half of the warm-up.

        Args:
            reason: Why the window ends, as a clause for the user.

        Returns:
            Whether this call ended it: False if it had ended before or has no block at all.
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
        """Let the later half of a warm-up count as the window.

        A number that may be too low or too high is better than none; the warm-up's reason tells the
        user.
        """
        half = len(blocks) // 2
        self._opening = self._evidence[half - 1] if half else None
        self._window_evidence = self._evidence[half:]
        self.phase = "window"
        self._warmup_s = self._warmup_s or now - self._began
        self._warmup_reason = f"cut after {self._warmup_s:.0f} s: {reason}"
        self.blocks, self.losses = blocks[half:], self._warmup_losses[half:]

    def measurement(self, memory: Memory) -> Measurement:
        """Return the measurement of the window, which must hold at least one block.

        Args:
            memory: The peak memory, which the caller measures from the warm-up on.
        """
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
        """Whether all steps so far were longer than ``SLOW_STEP_S``."""
        return SLOW_STEP_S < self._fastest_s < math.inf

    @property
    def _least_to_cut(self) -> int:
        if self._is_slow:
            return MIN_BLOCKS_OF_SLOW_STEPS
        return MIN_EPOCHS_TO_CUT if self._whole_epochs else MIN_BLOCKS_TO_CUT

    @property
    def _drained_share(self) -> float:
        """Share of the window's steps that were fed by batches prefetched before it, 0 to 1.

        Such steps make the throughput look higher than it stays. A difference of one step is
        ignored, because batches come in the bursts of the workers.
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
        """Return the largest number of slow steps that prefetched batches may have fed.

        With a few slow steps, a difference of one is not negligible, nor are the batches that the
        workers hold. The number is 0 if the steps show that the workers fed the program all the
        time, or kept the buffers full.
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
        faults = self.read.faults()
        return _Running(now, now, starts, self._counters, faults, faults)

    def _close_block(self, now: float) -> None:
        run, flow = self._run, self.read.flow()
        run.mark, run.faults_mark = now, self.read.faults()
        run.skip(now, flow.starts, run.faults_mark)
        block = Block(
            run.samples,
            run.steps,
            run.seconds,
            run.wait_s,
            run.edges,
            run.tokens,
            monotonic(),
            self._interference(run),
            run.faults,
        )
        if self.phase == "window" and block.is_disturbed and self._may_discard(block):
            self._discarded += 1
            self._began += block.seconds  # the window gets this time back
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
        # Reading takes 0.2 ms, so the end of one block is also the beginning of the next.
        self._counters = self.read.counters()
        if self._counters is None or run.counters is None:
            return None
        return self._counters.since(run.counters)

    def _has_no_time_for(self, block: Block) -> bool:
        """Return whether another block like this one would end after the plan's time.

        As long as there are too few blocks, only a time that is already up counts.
        """
        if self.plan.most_s is None:
            return False
        left_s = self._asked + self.plan.most_s - perf_counter()
        has_enough = self.phase == "window" and len(self.blocks) >= self._least_to_cut
        return left_s <= 0 or (has_enough and left_s < block.seconds)

    def _may_discard(self, block: Block) -> bool:
        """Return whether a disturbed block may be measured again.

        Repeated blocks may take no longer than the window itself, and there are ``MAX_DISCARDED``
        at most.
        """
        return (
            self._discarded < MAX_DISCARDED
            and (self._discarded + 1) * block.seconds <= self.plan.window_max_s
        )

    def _steps_for(self, step_s: float) -> int:
        """Return the number of steps of a block, in whole cycles of the workers.

        A block consists of whole epochs if an epoch is shorter than that, or if the buffers hold a
        large part of one. Steps are then fast at the epoch's beginning and slow at its end, so only
        a whole epoch shows the rate.
        """
        flow = self.read.flow()
        steps = flow.cycle_steps * max(1, math.ceil(self.plan.block_s / step_s / flow.cycle_steps))
        epoch = flow.steps_per_epoch
        self._whole_epochs = epoch is not None and (
            epoch <= steps or BUFFERED_SHARE * epoch <= flow.buffered_steps
        )
        return epoch * math.ceil(steps / epoch) if epoch and self._whole_epochs else steps

    def _end_warmup_if_steady(self, now: float) -> None:
        elapsed_s = now - self._began
        recent = self.blocks[-RECENT_BLOCKS:]
        # Blocks with a start of the loader are slower, which would look like a drift.
        plain = [b for b in recent if not b.epoch_edges]
        rates = [b.samples_per_s for b in (plain if len(plain) >= STEADY_BLOCKS else recent)]
        unsettled = [
            what
            for what, is_over in (
                ("data buffers still filling or draining", self._is_level()),
                ("torch still compiling or taking memory", self._is_quiet()),
                ("speed still changing", self._is_slow or is_steady(rates, tolerance=STEADY)),
            )
            if not is_over
        ]
        if elapsed_s >= self.plan.warmup_min_s and not unsettled:
            before_last_s = elapsed_s - self.blocks[-1].seconds
            self._open_window(elapsed_s, "steady")
            if self._is_slow and before_last_s >= self.plan.warmup_min_s:
                self._count_the_last()
        elif elapsed_s >= self.plan.warmup_max_s and len(self.blocks) >= self._least_to_cut:
            reason = ", ".join(unsettled) or "speed hardly settled"
            self._open_window(elapsed_s, f"cut after {elapsed_s:.0f} s: {reason}")

    def _is_level(self) -> bool:
        """Return whether the buffers neither filled nor drained over the recent blocks.

        If the buffers cannot be seen, they count as level once the program has taken twice what
        they hold.
        """
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
        """Let the window begin with the block that showed that the program is steady.

        Only slow steps are worth it: another such block would take seconds.
        """
        last = self._before_window[-1]
        self.blocks, self.losses = [last], self._warmup_losses[-1:]
        self._began -= last.seconds
        self._opening = self._evidence[-2] if len(self._evidence) > 1 else None
        self._window_evidence = self._evidence[-1:]

    def _close_window(self) -> None:
        """Go back to the warm-up: a shorter step shows that the program's steps are not slow."""
        self.phase = "warm-up"
        self._began = self._asked
        self.blocks, self._before_window = self._before_window, []
        self.losses = self._warmup_losses[:]

    def _end_window_if_decided(self, now: float) -> None:
        elapsed_s = now - self._began
        rates = [b.samples_per_s for b in self.blocks]
        half = relative_half_width(rates)
        if self.plan.give_up_below is not None and len(rates) >= self._least_to_cut:
            # Even the upper end of the interval must be below: noise must not end a fast config.
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
    """Return whether the workers set the pace in each block.

    The first block only shows that no buffered batches were left for the next one, so at least two
    are needed.
    """
    return len(evidence) > 1 and all(e.is_fed_by_workers for e in evidence)


def _are_full(evidence: list[_Evidence]) -> bool:
    """Return whether the buffers were full at the end of each block.

    By the last block the program must have made more steps than one cycle of the workers feeds.
    Otherwise the buffers could be full although the workers are slower than the program.
    """
    last = evidence[-1]
    was_put_to_work = len(evidence) > 1 and last.steps > last.flow.cycle_steps
    return was_put_to_work and all(e.has_full_buffers for e in evidence)


def _with_few_blocks(interval: Interval, blocks: list[Block]) -> Interval:
    """Widen the interval of one or two blocks, which cannot show how much blocks vary.

    The half-width is Student's t times a pooled spread: that of these blocks together with the
    spread ``FEW_BLOCKS_SPREAD`` that was seen elsewhere.
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
