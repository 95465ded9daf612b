"""Measurement: the values that measuring one config yields, from a block to a whole window.

All times are in seconds and all sizes in bytes, as the suffixes of the names say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from autotune.measurement.interference import Interference

DRAINED_IS_DOUBTFUL = 0.02
DISTURBED_IS_DOUBTFUL = 0.05
# Gradient norms grow by a power of the batch growth. The exponent is -1/2 to 0 for the mean of a
# batch and 1/2 to 1 for its sum; this threshold lies between the two.
BETWEEN_MEAN_AND_SUM = 0.25
RECOMPILES_GIVEN_UP = 7  # torch keeps eight versions of a function, then runs it uncompiled


@dataclass(frozen=True)
class Block:
    """Several consecutive steps that are timed together between two device syncs.

    A sync at every step would slow the program down, so the device is synchronised once per block.

    Attributes:
        samples: Samples that the steps trained on, over all ranks.
        steps: Number of optimizer steps.
        seconds: Wall time of the block.
        wait_s: Part of ``seconds`` spent waiting for the next batch.
        epoch_edges: How often the training loader was started again within the block.
        tokens: Number of token ids, padding included, that went into the model; 0 if its input is
            not token ids.
        ended_at_s: When the block ended, by ``time.monotonic()``, which all processes of a machine
            share.
        interference: The counters of the system over the block; None if they were not read.
    """

    samples: int
    steps: int
    seconds: float
    wait_s: float
    epoch_edges: int = 0
    tokens: int = 0
    ended_at_s: float = 0.0
    interference: Interference | None = None

    @property
    def is_disturbed(self) -> bool:
        """Whether something other than the program took time from this block."""
        return self.interference is not None and bool(self.interference.reasons)

    @property
    def samples_per_s(self) -> float:
        """Throughput of this block alone."""
        return self.samples / self.seconds


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval, all in the same unit.

    Raises:
        ValueError: The estimate does not lie within the bounds.
    """

    estimate: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.estimate <= self.high:
            raise ValueError(f"an interval encloses its estimate, got {self}")

    def __str__(self) -> str:
        return f"{self.estimate:,.3g} [{self.low:,.3g}, {self.high:,.3g}]"

    @property
    def half_width_pct(self) -> float:
        """Half of the interval's width, in percent of the estimate."""
        return 100 * (self.high - self.low) / 2 / self.estimate

    def times(self, factor: float) -> Interval:
        """Return the interval multiplied by a positive factor."""
        return Interval(self.estimate * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True)
class Turn:
    """Throughputs of a config and of the baseline that were measured shortly after each other.

    The config's throughput is divided by its extra work if the program makes a fixed number of
    steps, so that the ratio is a speedup of the whole run.
    """

    config: Interval
    reference: Interval

    @property
    def log_ratio(self) -> float:
        """Natural logarithm of the speedup."""
        return math.log(self.config.estimate / self.reference.estimate)


@dataclass(frozen=True)
class Memory:
    """Peak memory while a config was measured; None where nothing reports it.

    Attributes:
        device_allocated_bytes: torch's peak of live tensors on the device.
        device_reserved_bytes: torch's peak of memory reserved from the device.
        device_used_bytes: What all processes use on the device, according to its driver.
        device_process_bytes: What the rig's own processes use, according to the driver.
        alloc_retries: How often torch's allocator had to empty its cache to continue; a sign that
            the memory is nearly full.
        alloc_failures: How often it ran out of memory, including errors that the program caught.
        host_bytes: Host memory of the rig's process tree; shared pages count once if PSS can be
            read.
    """

    device_allocated_bytes: int | None = None
    device_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    device_process_bytes: int | None = None
    alloc_retries: int | None = None
    alloc_failures: int | None = None
    host_bytes: int | None = None


@dataclass(frozen=True)
class StepParts:
    """Where the time of a step goes: mean seconds per step for each part, which add up to the step.

    On a CPU each part is wall time of the main thread. On a GPU, transfer, compute and optimizer
    are device time between CUDA events, including gaps between kernels. The time in which the
    device is idle is attributed first to waiting for data, then to sync calls, and the rest is
    overhead.

    Attributes:
        wait_s: Waiting for the next batch.
        transfer_s: Moving tensors from one device to another.
        compute_s: From the model's call to the end of backward.
        optimizer_s: From the end of backward to the end of the optimizer's step (including gradient
            clipping and unscaling), and zeroing gradients.
        sync_s: Calls that wait for the device, such as ``.item()``.
        overhead_s: Everything else: Python, launching kernels, logging.
        steps: Number of steps that were analysed.
        launch_s: On a GPU, the host time for launching compute and optimizer. If it is as long as
            these parts, the kernels are too small for the device. None on a CPU.
    """

    wait_s: float
    transfer_s: float
    compute_s: float
    optimizer_s: float
    sync_s: float
    overhead_s: float
    steps: int
    launch_s: float | None = None

    @property
    def parts(self) -> dict[str, float]:
        """The parts by the names shown to users, in the order of a step."""
        return {
            "data wait": self.wait_s,
            "host to device": self.transfer_s,
            "compute": self.compute_s,
            "optimizer": self.optimizer_s,
            "sync calls": self.sync_s,
            "Python and launch": self.overhead_s,
        }

    @property
    def step_s(self) -> float:
        """Duration of the whole step."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class StepBreakdown:
    """Where the time of a step goes, and the throughput with one part taken out of it.

    Attributes:
        split: The parts of a step; None if the program ended before enough steps were seen.
        synthetic_data_throughput: Samples/s when one cached batch is used over and over; None
            without a DataLoader.
        loader_throughput: Samples/s of the training loader alone; None without exactly one
            DataLoader.
        flops_per_step: By torch's FlopCounterMode, which counts matrix products, convolutions and
            attention only. None where it cannot count, such as in compiled models.
    """

    split: StepParts | None = None
    synthetic_data_throughput: Interval | None = None
    loader_throughput: Interval | None = None
    flops_per_step: float | None = None


@dataclass(frozen=True)
class Compilation:
    """What torch.compile did between the switch to a config and the end of its window.

    Attributes:
        seconds: Time spent compiling, forward and backward.
        graphs: Number of graphs; a model without graph breaks has one.
        recompiles: How often code was compiled again because a guard failed, for instance on a
            shape.
        graph_breaks: Number of places where the model falls back to Python.
    """

    seconds: float
    graphs: int
    recompiles: int
    graph_breaks: int

    def __str__(self) -> str:
        notes = [
            f"{count} {name}{'s' if count > 1 else ''}"
            for count, name in (
                (self.recompiles, "recompilation"),
                (self.graph_breaks, "graph break"),
            )
            if count
        ]
        return ", ".join([f"compiled in {self.seconds:.0f}s", *notes])


@dataclass(frozen=True)
class RankLoad:
    """How one of several ranks spent a mean step of the window's last block.

    Attributes:
        rank: Number of the rank, from 0.
        step_s: Duration of the step.
        wait_s: Part of ``step_s`` spent waiting for the next batch.
        communication_s: How long collectives were running, including the wait for other ranks. It
            is recorded in extra steps after the window; None if that was not possible.
    """

    rank: int
    step_s: float
    wait_s: float
    communication_s: float | None = None

    @property
    def own_s(self) -> float | None:
        """Seconds of a step in which no collective is running; None if unknown."""
        if self.communication_s is None:
            return None
        return max(0.0, self.step_s - self.communication_s)


@dataclass(frozen=True)
class BatchEffect:
    """How the steps of a program changed with the batch size, at the same learning rate.

    It tells whether the loss is a mean or a sum over samples, which decides how the learning rate
    has to be scaled.

    Attributes:
        batch_growth: Ratio of the batch sizes (after / before).
        gradient_growth: Ratio of the median gradient norms; None if it is undefined.
        loss_growth: Ratio of the median losses; None if it is undefined.
        unmoved: Class name of a module that still receives the old number of samples; empty if all
            modules received the new batch.
    """

    batch_growth: float
    gradient_growth: float | None
    loss_growth: float | None
    unmoved: str = ""

    @property
    def sums(self) -> bool | None:
        """Whether gradients grow with the batch; None if the evidence is missing or contradictory.

        If the batch grows by g, the gradient of a mean changes by a factor of 1/sqrt(g) to 1,
        depending on its noise, and that of a sum by sqrt(g) to g. Over a few steps the norms vary
        by a similar amount, so the loss has to agree if its ratio is defined.
        """
        signs = [
            math.log(growth) / math.log(self.batch_growth) > BETWEEN_MEAN_AND_SUM
            for growth in (self.gradient_growth, self.loss_growth)
            if growth is not None and math.isfinite(growth)
        ]
        return signs[0] if len(set(signs)) == 1 else None


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
    effect: BatchEffect | None = None

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
        yield f"The warm-up was {cut[0].warmup_reason}{several.format(len(cut))}."
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
            f"Up to {drained:.0%} of a window's samples came from buffers that were filled "
            "before it: the lower end of its interval allows for that."
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
