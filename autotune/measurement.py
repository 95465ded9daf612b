"""Measurement: what one window of blocks on a rig gave, with units in the names."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Block:
    """k consecutive steps timed together between two device syncs.

    Attributes:
        wait_s: Part of ``seconds`` spent waiting for the next batch.
        epoch_edges: How often the training loader was started again inside the block.
    """

    samples: int
    steps: int
    seconds: float
    wait_s: float
    epoch_edges: int = 0

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


@dataclass(frozen=True)
class Memory:
    """Peaks while a config was measured; None where nothing reports it.

    Attributes:
        device_allocated_bytes: torch's own peak of live tensors on the device.
        device_reserved_bytes: torch's own peak of memory taken from the device.
        device_used_bytes: What the device's driver says is in use by all processes.
        host_bytes: The rig's whole process tree, shared pages counted once where PSS is readable.
    """

    device_allocated_bytes: int | None = None
    device_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    host_bytes: int | None = None


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

    @property
    def wait_share(self) -> float:
        """Share of the measured time that the program waited for its next batch, 0 to 1."""
        return sum(b.wait_s for b in self.blocks) / sum(b.seconds for b in self.blocks)

    @property
    def step_s(self) -> float:
        """Mean seconds per step."""
        return sum(b.seconds for b in self.blocks) / sum(b.steps for b in self.blocks)
