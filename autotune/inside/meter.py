"""Meter: steps become blocks, blocks become a window; the device is synced at block edges only."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal

from autotune.measurement import Block, Measurement, Memory
from autotune.stats import STEADY_BLOCKS, EpochEdge, is_steady, relative_half_width, throughput
from autotune.wire import WindowPlan

BLOCK_S = (
    0.1  # shorter blocks are dominated by timer and scheduler noise (seen on a 2-core machine)
)
STEADY = 0.05
BUFFERED_SHARE = 0.25
RECENT_BLOCKS = 2 * STEADY_BLOCKS
LEAST_BLOCKS = 5
LEAST_BLOCKS_TO_CUT = 3
LEAST_EPOCHS_TO_CUT = 2


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
    """

    buffered_steps: int = 0
    cycle_steps: int = 1
    steps_per_epoch: int | None = None
    samples_per_epoch: int | None = None
    start_s: float = 0.0
    starts: int = 0


@dataclass
class _Running:
    """The block being timed, in stretches between disturbances.

    Attributes:
        resumed: When the present stretch began.
        mark: When its last step ended.
        starts: Starts of the loader when it began.
    """

    resumed: float
    mark: float
    starts: int
    seconds: float = 0.0
    samples: int = 0
    steps: int = 0
    wait_s: float = 0.0
    edges: int = 0

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
        flow: Gives the present state of the data feed.
        sync: Waits until the device is idle.
        read_loss: Gives the last loss, None where the program shows none.
    """

    plan: WindowPlan
    flow: Callable[[], Flow]
    sync: Callable[[], None]
    read_loss: Callable[[], float | None]
    phase: Literal["warm-up", "window"] = "warm-up"
    blocks: list[Block] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sync()
        self._began = perf_counter()
        self._steps = 0
        self._block_steps = 1
        self._whole_epochs = False
        self._disturbed = False
        self._warmup_s = 0.0
        self._warmup_reason = ""
        self._stop_reason = ""
        self._run = self._new_block()

    @property
    def is_done(self) -> bool:
        """The window has ended."""
        return bool(self._stop_reason)

    def disturb(self) -> None:
        """Leave the present step out: the program does something besides training in it."""
        self._disturbed = True

    def step(self, samples: int, wait_s: float) -> bool:
        """Count a finished step; return whether it closed a block."""
        self._steps += 1
        run = self._run
        if self._disturbed:
            self._disturbed = False
            self.sync()
            run.skip(perf_counter(), self.flow().starts)
            return False
        run.samples += samples
        run.wait_s += wait_s
        run.steps += 1
        run.mark = perf_counter()
        if run.steps < self._block_steps:
            return False
        self.sync()
        self._close_block(perf_counter())
        self._run = self._new_block()
        return True

    def finish(self, reason: str) -> bool:
        """End the window early for *reason*, if it holds enough blocks to say anything."""
        if self.phase == "window" and len(self.blocks) >= self._least_to_cut:
            self._stop_reason = self._stop_reason or reason
        return self.is_done

    def measurement(self, memory: Memory) -> Measurement:
        """Return the window as measured."""
        flow = self.flow()
        waits = sum(b.wait_s for b in self.blocks) / sum(b.steps for b in self.blocks)
        edge = (
            EpochEdge(max(0.0, flow.start_s - waits), flow.samples_per_epoch)
            if flow.samples_per_epoch
            else None
        )
        rate = throughput(self.blocks, edge)
        return Measurement(
            throughput=rate.interval,
            blocks=tuple(self.blocks),
            warmup_s=self._warmup_s,
            warmup_reason=self._warmup_reason,
            stop_reason=self._stop_reason,
            edge_s=rate.edge_s,
            samples_per_epoch=flow.samples_per_epoch,
            losses=tuple(self.losses),
            memory=memory,
        )

    @property
    def _least_to_cut(self) -> int:
        return LEAST_EPOCHS_TO_CUT if self._whole_epochs else LEAST_BLOCKS_TO_CUT

    def _new_block(self) -> _Running:
        now = perf_counter()
        return _Running(now, now, self.flow().starts)

    def _close_block(self, now: float) -> None:
        run = self._run
        run.mark = now
        run.skip(now, self.flow().starts)
        seconds = run.seconds
        self.blocks.append(Block(run.samples, run.steps, seconds, run.wait_s, run.edges))
        self.losses.append(self.read_loss())
        if self.phase == "warm-up":
            self._block_steps = self._steps_for(seconds / run.steps)
            self._end_warmup_if_steady(now)
        else:
            self._end_window_if_decided(now)

    def _steps_for(self, step_s: float) -> int:
        """Steps in a block of BLOCK_S, in whole cycles of the workers.

        Whole epochs where an epoch is shorter than that, or where the buffers hold much of one:
        there steps are fast at first and slow at the end, and only an epoch shows the flow.
        """
        flow = self.flow()
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
        drained = self._steps >= 2 * self.flow().buffered_steps
        if elapsed_s >= self.plan.warmup_min_s and drained and is_steady(rates, tolerance=STEADY):
            self._open_window(elapsed_s, "steady")
        elif elapsed_s >= self.plan.warmup_max_s and len(self.blocks) >= self._least_to_cut:
            self._open_window(elapsed_s, f"cut after {elapsed_s:.0f} s: still drifting")

    def _open_window(self, warmup_s: float, reason: str) -> None:
        self.phase = "window"
        self._warmup_s, self._warmup_reason = warmup_s, reason
        self._began = perf_counter()
        self.blocks.clear()
        self.losses.clear()

    def _end_window_if_decided(self, now: float) -> None:
        elapsed_s = now - self._began
        rates = [b.samples_per_s for b in self.blocks]
        half = relative_half_width(rates)
        if self.plan.give_up_below is not None and len(rates) >= self._least_to_cut:
            best_case = sorted(rates)[len(rates) // 2] * (1 + half)
            if best_case < self.plan.give_up_below:
                self._stop_reason = "clearly slower"
                return
        enough = len(rates) >= LEAST_BLOCKS and elapsed_s >= self.plan.window_min_s
        if enough and half <= self.plan.half_width:
            self._stop_reason = f"interval within {self.plan.half_width:.0%}"
        elif elapsed_s >= self.plan.window_max_s and len(rates) >= self._least_to_cut:
            self._stop_reason = f"cut after {elapsed_s:.1f} s"
