"""Goal: what a search makes as large as it can, and within which limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.readings import Memory
from autotune.measurement.turn import Played, Taken

LEAST_SHARE = 0.01  # of the hours of a training that compiling leaves in any case


class Objective(StrEnum):
    """What configs are compared by. Users write the values."""

    THROUGHPUT = "throughput"
    """Samples per second."""
    STEP_TIME = "step-time"
    """Optimizer steps per second, however many samples they hold."""
    MEMORY = "memory"
    """The inverse of the peak memory."""
    ENERGY = "energy"
    """Samples per joule."""

    @property
    def counts_samples(self) -> bool:
        """Whether a step of more samples counts for more."""
        return self not in {Objective.STEP_TIME, Objective.MEMORY}


@dataclass(frozen=True)
class Goal:
    """What a search makes as large as it can.

    Attributes:
        max_memory: Share of the memory, 0 to 1, that a config may use at most: of the device where
            one is used, else of the host; None sets no limit.
        hours: How long the training will take, over which the time that a config spends compiling
            counts; None leaves it out.
    """

    objective: Objective = Objective.THROUGHPUT
    max_memory: float | None = None
    hours: float | None = None

    @property
    def better(self) -> str:
        """What a config with a ratio above 1 is, to follow ``1.3x``."""
        words = {
            Objective.THROUGHPUT: "faster",
            Objective.STEP_TIME: "faster in each step",
            Objective.MEMORY: "less memory",
            Objective.ENERGY: "more samples per joule",
        }
        return words[self.objective]

    @property
    def needs_stays(self) -> bool:
        """Whether a config must train alone to be compared, because all in play share a meter."""
        return self.objective in {Objective.ENERGY, Objective.MEMORY}

    @property
    def least_stay_s(self) -> float:
        """Least seconds of a stay: its calls take a third, in which meters are read twice."""
        return 3.0 if self.needs_stays else 0.0

    def worth(self, one: Played, read: Taken | Measurement) -> Played | None:
        """Return what is compared of a turn or a stay, with the readings that belong to it.

        None if they do not tell: without a counter of energy, for example.
        """
        match self.objective:
            case Objective.STEP_TIME:
                return replace(one, work=float(one.steps))
            case Objective.ENERGY:
                return None if not read.power_w else replace(one, cost=one.cost * read.power_w)
            case Objective.MEMORY:
                peak = read.memory.peak_bytes
                return None if not peak else replace(one, cost=float(peak), work=1.0)
            case _:
                return one

    def limit_bytes(self, capacity_bytes: int) -> float:
        """Return how much of a memory a config may use."""
        return capacity_bytes * (1.0 if self.max_memory is None else self.max_memory)

    def excess(self, used: Memory, capacity_bytes: int) -> Ending | None:
        """Return how a config ended that used more than the user's limit; None if it did not."""
        peak = used.peak_bytes
        if self.max_memory is None or peak is None or peak <= self.limit_bytes(capacity_bytes):
            return None
        return Ending(
            Outcome.OUT_OF_MEMORY if used.is_on_device else Outcome.HOST_OUT_OF_MEMORY,
            f"it used {peak / capacity_bytes:.0%} of the memory, more than --max-memory "
            f"{self.max_memory:.0%}",
        )

    def kept_share(self, compile_s: float) -> float:
        """Return the share of the training that is left after some seconds of compiling."""
        if self.hours is None:
            return 1.0
        return max(LEAST_SHARE, 1 - compile_s / (3600 * self.hours))


THROUGHPUT = Goal()
NO_COUNTER = {
    Objective.ENERGY: "no counter of energy can be read here (NVML for GPUs, RAPL for CPUs)",
    Objective.MEMORY: "the peak memory cannot be read here",
}
