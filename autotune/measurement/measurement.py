"""Measurement: what one window of blocks on a rig gave, with units in the names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from autotune.measurement.interference import Interference

DRAINED_IS_DOUBTFUL = 0.02
DISTURBED_IS_DOUBTFUL = 0.05
BETWEEN_MEAN_AND_SUM = (
    0.25  # exponents of growth: a mean's gradients have 0 to -1/2, a sum's 1 to 1/2
)
RECOMPILES_GIVEN_UP = 7  # torch allows eight codes of one function, then it runs as written


@dataclass(frozen=True)
class Block:
    """k consecutive steps timed together between two device syncs.

    Attributes:
        wait_s: Part of ``seconds`` spent waiting for the next batch.
        epoch_edges: How often the training loader was started again inside the block.
        tokens: Token ids, padding included, that went into the model; 0 where its input is none.
        ended_at_s: When it ended, by ``time.monotonic()``, which all processes of a machine share.
        interference: What disturbed it, None where nothing was watched.
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
        """Something other than the program took its time."""
        return self.interference is not None and bool(self.interference.reasons)

    @property
    def samples_per_s(self) -> float:
        """Throughput of this block alone."""
        return self.samples / self.seconds


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval, in the unit of the estimate."""

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
        """Half of the interval's width as percent of the estimate."""
        return 100 * (self.high - self.low) / 2 / self.estimate

    def times(self, factor: float) -> Interval:
        """Return the interval of a multiple, of a positive factor."""
        return Interval(self.estimate * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True)
class Turn:
    """Throughput of a config and, near in time, of the baseline; of samples it has to train on."""

    config: Interval
    reference: Interval

    @property
    def log_ratio(self) -> float:
        """Logarithm of the speedup."""
        return math.log(self.config.estimate / self.reference.estimate)


@dataclass(frozen=True)
class Memory:
    """Peaks while a config was measured; None where nothing reports it.

    Attributes:
        device_allocated_bytes: torch's own peak of live tensors on the device.
        device_reserved_bytes: torch's own peak of memory taken from the device.
        device_used_bytes: What the device's driver says is in use by all processes.
        device_process_bytes: What the driver says is in use by the rig's own processes.
        alloc_retries: How often torch's allocator had to empty its cache to go on: thrash.
        alloc_failures: How often it ran out of memory, errors that the program caught included.
        host_bytes: The rig's whole process tree, shared pages counted once where PSS is readable.
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
    """Where the time of a step goes: mean seconds per step, which add up to the step.

    On a CPU each part is wall time in the main thread. On a GPU transfer, compute and optimizer are
    device time between CUDA events, gaps between kernels included; the time in which the device has
    nothing to do is waiting for data first, then for sync calls, and the rest is overhead.

    Attributes:
        wait_s: Waiting for the next batch.
        transfer_s: Moving tensors from one device to another.
        compute_s: From the model's call to the end of backward.
        optimizer_s: From the end of backward to the end of the optimizer's step (gradient clipping
            and unscaling are in it), and zeroing gradients.
        sync_s: Calls that wait for the device, such as ``.item()``.
        overhead_s: The rest: Python, launching kernels, logging.
        launch_s: On a GPU, time the host needs to launch compute and optimizer; where it is as long
            as these, kernels are too small for the device. None elsewhere.
        steps: Steps that were taken apart.
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
        """The parts by name, in the order of a step."""
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
        """The whole step."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class StepBreakdown:
    """What a program could reach with one part taken out, and where its step's time goes.

    Attributes:
        split: None for a program that ended before enough steps were seen.
        synthetic_data_throughput: Samples/s with one cached batch again and again; None without a
            DataLoader.
        loader_throughput: Samples/s of the training loader alone; None without exactly one
            DataLoader.
        flops_per_step: By torch's FlopCounterMode; matrix products, convolutions and attention
            alone. None where it cannot count, such as in compiled models.
    """

    split: StepParts | None = None
    synthetic_data_throughput: Interval | None = None
    loader_throughput: Interval | None = None
    flops_per_step: float | None = None


@dataclass(frozen=True)
class Compilation:
    """What torch.compile did from the switch to a config to the end of its window.

    Attributes:
        seconds: Time spent compiling, forward and backward.
        graphs: Graphs that were made; a model without breaks is one.
        recompiles: How often code was compiled again because a guard failed, such as a shape.
        graph_breaks: Places where the model falls back to Python.
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
    """How one of several ranks spent a mean step of a window's last block.

    Attributes:
        wait_s: Part of ``step_s`` spent waiting for the next batch.
        communication_s: How long collectives were under way, waiting for other ranks included, in
            steps that were recorded after the window; None where that could not be recorded.
    """

    rank: int
    step_s: float
    wait_s: float
    communication_s: float | None = None

    @property
    def own_s(self) -> float | None:
        """What the rank does by itself, while no collective is under way."""
        if self.communication_s is None:
            return None
        return max(0.0, self.step_s - self.communication_s)


@dataclass(frozen=True)
class BatchEffect:
    """What another batch did to the steps of a program, at the same learning rate.

    Attributes:
        batch_growth: Samples of a batch, times those before.
        gradient_growth: Median norm of the gradients likewise; None where it has no ratio.
        loss_growth: Median loss likewise; None where it has no ratio.
        unmoved: Class name of a module that goes on with as many samples as before; empty if all
            take the new batch.
    """

    batch_growth: float
    gradient_growth: float | None
    loss_growth: float | None
    unmoved: str = ""

    @property
    def sums(self) -> bool | None:
        """Whether gradients grow with the batch; None where its signs contradict each other.

        With g times the samples, the gradient of a mean is 1/sqrt(g) to 1 times as long, by how
        much of it is noise, and that of a sum sqrt(g) to g times. A few steps vary by as much, so
        the loss, where it has a ratio, must say the same.
        """
        signs = [
            math.log(growth) / math.log(self.batch_growth) > BETWEEN_MEAN_AND_SUM
            for growth in (self.gradient_growth, self.loss_growth)
            if growth is not None and math.isfinite(growth)
        ]
        return signs[0] if len(set(signs)) == 1 else None


@dataclass(frozen=True)
class Measurement:
    """One config measured on a rig.

    Attributes:
        throughput: Samples per second, end to end: data loading and epoch restarts included.
        blocks: The blocks after warm-up, in order.
        warmup_s: How long warm-up took.
        warmup_reason: Why it ended.
        stop_reason: Why the window ended.
        edge_s: Extra seconds that each start of the training loader costs, None if unknown.
        samples_per_epoch: Samples between two such starts, None if unknown.
        losses: The loss at the end of each block, None entries where the program shows none.
        discarded_blocks: Blocks that were disturbed and measured again.
        drained_share: Share of the counted samples that came out of buffers which held less at the
            end than at the beginning: what was consumed, but not produced.
        power_w: Mean power of GPUs, or of the CPU packages for programs on the CPU; None where no
            counter is readable.
        compilation: What torch.compile did; None in a process that compiles nothing.
        ranks: How the ranks spent their time, empty for one process.
        effect: What its batch did to the steps, where that was looked at before.
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
        """Share of a step in which collectives are under way, 0 to 1: the least of all ranks.

        The rank that the others wait for communicates least; the rest of theirs is waiting for it.
        """
        shares = [r.communication_s / r.step_s for r in self.ranks if r.communication_s is not None]
        return min(1.0, *shares) if shares else None

    @property
    def imbalance_share(self) -> float | None:
        """Share of a step that the other ranks wait for the slowest one, 0 to 1."""
        own = [r.own_s for r in self.ranks if r.own_s is not None]
        if not own:
            return None
        return (max(own) - sum(own) / len(own)) / max(r.step_s for r in self.ranks)

    @property
    def slowest_rank(self) -> int | None:
        """The rank that has most to do by itself, None where that is unknown."""
        known = [r for r in self.ranks if r.own_s is not None]
        return max(known, key=lambda r: r.own_s or 0.0).rank if known else None

    @property
    def samples_per_step(self) -> float:
        """Samples that an optimizer step took, of all ranks."""
        return sum(b.samples for b in self.blocks) / sum(b.steps for b in self.blocks)

    @property
    def tokens_per_s(self) -> Interval | None:
        """Token ids per second, padding included; None where the model's input is none."""
        tokens = sum(b.tokens for b in self.blocks)
        if not tokens:
            return None
        per_sample = tokens / sum(b.samples for b in self.blocks)
        rate = self.throughput
        return Interval(rate.estimate * per_sample, rate.low * per_sample, rate.high * per_sample)

    @property
    def joules_per_sample(self) -> float | None:
        """Energy per sample, None where no counter is readable."""
        return None if self.power_w is None else self.power_w / self.throughput.estimate

    @property
    def disturbed_share(self) -> float:
        """Share of the blocks that count although something disturbed them, 0 to 1."""
        return sum(b.is_disturbed for b in self.blocks) / len(self.blocks)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why this measurement is less sure than others, as sentences for the user."""
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
    """Return why windows are less sure than others, as sentences for the user."""
    return tuple(_doubts(windows))


def _doubts(windows: Sequence[Measurement]) -> Iterator[str]:
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
            "The interval is wider for it; close what else is running and measure again."
        )
    drained = max((m.drained_share for m in windows), default=0.0)
    if drained > DRAINED_IS_DOUBTFUL:
        yield (
            f"Up to {drained:.0%} of a window's samples came from buffers that were filled "
            "before: the lower end of its interval allows for it."
        )
    compiled = [m.compilation for m in windows if m.compilation is not None]
    if any(c.recompiles >= RECOMPILES_GIVEN_UP for c in compiled):
        yield (
            f"torch.compile made its code again {max(c.recompiles for c in compiled)} times and "
            "gave up: shapes or values in this program change from step to step."
        )
    retries = sum(m.memory.alloc_retries or 0 for m in windows)
    if retries:
        yield (
            "The GPU's memory is nearly full: torch emptied its cache "
            f"{retries} times. Take a smaller batch."
        )
