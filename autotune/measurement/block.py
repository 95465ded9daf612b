"""Block: several steps that are timed together, the smallest unit of a measurement."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.measurement.interference import Interference


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
        faults: Minor page faults of the program's process in that time; 0 if not counted.
    """

    samples: int
    steps: int
    seconds: float
    wait_s: float
    epoch_edges: int = 0
    tokens: int = 0
    ended_at_s: float = 0.0
    interference: Interference | None = None
    faults: int = 0

    @property
    def is_disturbed(self) -> bool:
        """Whether something other than the program took time from this block."""
        return self.interference is not None and bool(self.interference.reasons)

    @property
    def samples_per_s(self) -> float:
        """Throughput of this block alone."""
        return self.samples / self.seconds
