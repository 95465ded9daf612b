"""Measurement: the values that measuring one config yields, from a block to a whole window.

All times are in seconds and all sizes in bytes, as the suffixes of the names say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from autotune.measurement.batch_effect import BatchEffect
from autotune.measurement.block import Block
from autotune.measurement.compilation import Compilation
from autotune.measurement.interval import Interval
from autotune.measurement.memory import Memory
from autotune.measurement.pilot import Pace, Pilot, pace_around
from autotune.measurement.rank_load import RankLoad

DRAINED_IS_DOUBTFUL = 0.02
DISTURBED_IS_DOUBTFUL = 0.05
RECOMPILES_GIVEN_UP = 7  # torch keeps eight versions of a function, then runs it uncompiled


@dataclass(frozen=True)
class Measurement:
    """One config measured in a rig.

    Attributes:
        throughput: Samples per second, end to end: data loading and loader starts are included.
        blocks: The blocks after the warm-up, in order.
        warmup_s: Duration of the warm-up.
        warmup_reason: Why the warm-up ended.
        stop_reason: Why the window ended.
        edge_s: Extra seconds that each start of the training loader costs; None if unknown.
        samples_per_epoch: Samples between two such starts; None if unknown.
        losses: The loss at the end of each block; entries are None if the program shows no loss.
        memory: Peak memory in the window.
        discarded_blocks: Number of disturbed blocks that were dropped and measured again.
        drained_share: Share of the counted samples that were taken from prefetch buffers without
            being replaced: they were consumed in the window but not produced in it.
        power_w: Mean power of the GPUs, or of the CPU packages for a program on the CPU; None if no
            counter can be read.
        compilation: What torch.compile did; None if the process compiles nothing.
        ranks: How the ranks spent their time; empty for a single process.
        pilots_before: Timings of the pilots before the window; empty where none could be taken.
        pilots_after: The same after it.
        fault_s: CPU seconds that one minor page fault takes here; 0.0 if unknown.
        effect: The effect of the config's batch size on the steps; None if it was not examined.
    """

    throughput: Interval
    blocks: tuple[Block, ...]
    warmup_s: float
    warmup_reason: str
    stop_reason: str
    edge_s: float | None = None
    samples_per_epoch: int | None = None
    losses: tuple[float | None, ...] = ()
    memory: Memory = field(default_factory=Memory)
    discarded_blocks: int = 0
    drained_share: float = 0.0
    power_w: float | None = None
    compilation: Compilation | None = None
    ranks: tuple[RankLoad, ...] = ()
    pilots_before: tuple[Pilot, ...] = ()
    pilots_after: tuple[Pilot, ...] = ()
    fault_s: float = 0.0
    effect: BatchEffect | None = None

    @property
    def pace(self) -> Pace | None:
        """The machine's pace around the window; None without pilots."""
        return pace_around(self.pilots_before, self.pilots_after)

    @property
    def communication_share(self) -> float | None:
        """Share of a step in which collectives run, 0 to 1; the smallest of all ranks.

        The rank that the others wait for communicates least. The remainder of the others' time in
        collectives is waiting for that rank.
        """
        shares = [r.communication_s / r.step_s for r in self.ranks if r.communication_s is not None]
        # Communication is recorded in later steps, which may be longer than those of the window.
        return min(1.0, *shares) if shares else None

    @property
    def imbalance_share(self) -> float | None:
        """Mean share of a step that the ranks wait for the slowest one, 0 to 1; None if unknown."""
        own = [r.own_s for r in self.ranks if r.own_s is not None]
        if not own:
            return None
        return (max(own) - sum(own) / len(own)) / max(r.step_s for r in self.ranks)

    @property
    def slowest_rank(self) -> int | None:
        """The rank with the longest work outside of collectives; None if unknown."""
        known = [r for r in self.ranks if r.own_s is not None]
        return max(known, key=lambda r: r.own_s or 0.0).rank if known else None

    @property
    def samples_per_step(self) -> float:
        """Samples per optimizer step, over all ranks."""
        return sum(b.samples for b in self.blocks) / sum(b.steps for b in self.blocks)

    @property
    def tokens_per_s(self) -> Interval | None:
        """Tokens per second, padding included; None if the model input is not token ids."""
        tokens = sum(b.tokens for b in self.blocks)
        if not tokens:
            return None
        per_sample = tokens / sum(b.samples for b in self.blocks)
        rate = self.throughput
        return Interval(rate.estimate * per_sample, rate.low * per_sample, rate.high * per_sample)

    @property
    def joules_per_sample(self) -> float | None:
        """Energy per sample in joules; None if no energy counter can be read."""
        return None if self.power_w is None else self.power_w / self.throughput.estimate

    @property
    def disturbed_share(self) -> float:
        """Share of the counted blocks that were disturbed, 0 to 1."""
        return sum(b.is_disturbed for b in self.blocks) / len(self.blocks)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons to trust this measurement less than others, as sentences for the user."""
        return warnings_of([self])

    @property
    def fault_share(self) -> Interval:
        """Share of the time that minor page faults take, were they to come one after the other.

        The interval is twice the standard error over the blocks. Those in which the loader started
        are left out: after a fork, each page that is written faults.
        """
        blocks = [b for b in self.blocks if not b.epoch_edges] or list(self.blocks)
        shares = [self.fault_s * b.faults / b.seconds for b in blocks]
        mean = fmean(shares)
        reach = 2 * stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else mean
        return Interval(mean, mean - reach, mean + reach)

    @property
    def wait_share(self) -> float:
        """Share of the measured time that the program waited for its next batch, 0 to 1."""
        return sum(b.wait_s for b in self.blocks) / sum(b.seconds for b in self.blocks)

    @property
    def step_s(self) -> float:
        """Mean seconds per step."""
        return sum(b.seconds for b in self.blocks) / sum(b.steps for b in self.blocks)


def warnings_of(windows: Sequence[Measurement]) -> tuple[str, ...]:
    """Return the reasons to trust windows less than others, as sentences for the user.

    Several windows of one side are summarised together, so that each reason appears once.
    """
    return tuple(_warnings(windows))


def _warnings(windows: Sequence[Measurement]) -> Iterator[str]:
    several = f" in {{}} of {len(windows)} windows" if len(windows) > 1 else ""
    cut = [m for m in windows if m.warmup_reason.startswith("cut")]
    if cut:
        yield (
            f"The program was not steady yet{several.format(len(cut))}: the warm-up was "
            f"{cut[0].warmup_reason}. The result is less certain."
        )
    blocks = [b for m in windows for b in m.blocks]
    disturbed = sum(b.is_disturbed for b in blocks) / len(blocks) if blocks else 0.0
    if disturbed >= DISTURBED_IS_DOUBTFUL:
        reasons = dict.fromkeys(
            reason for b in blocks if b.interference for reason in b.interference.reasons
        )
        yield (
            f"{disturbed:.0%} of the blocks were disturbed: {', '.join(reasons)}. "
            "The interval is wider because of that; close other programs and measure again."
        )
    drained = max((m.drained_share for m in windows), default=0.0)
    if drained > DRAINED_IS_DOUBTFUL:
        yield (
            f"Up to {drained:.0%} of the samples of a measurement were loaded before it began, so "
            "the true speed may be lower; the lower end of the interval allows for that."
        )
    compiled = [m.compilation for m in windows if m.compilation is not None]
    if any(c.recompiles >= RECOMPILES_GIVEN_UP for c in compiled):
        yield (
            f"torch.compile recompiled {max(c.recompiles for c in compiled)} times and "
            "gave up: shapes or values in this program change from step to step."
        )
    retries = sum(m.memory.alloc_retries or 0 for m in windows)
    if retries:
        yield (
            "The GPU's memory is nearly full: torch emptied its cache "
            f"{retries} times. Use a smaller batch."
        )
