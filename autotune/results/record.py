"""What a run remembers of each trial and each confirmation process; stored in the study as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from autotune.knobs.space.space import SearchSpace
from autotune.machine.hardware import Hardware
from autotune.measurement.measurement import Interval, Measurement, StepBreakdown, Turn
from autotune.measurement.outcome import Ending, Outcome
from autotune.program.config import Config
from autotune.program.fence_options import FenceOptions
from autotune.program.lr import LrRule
from autotune.program.profile import Profile
from autotune.program.program import Program

FORMAT = 3  # 2 had profiles in which nobody had looked whether a knob trains the same


@dataclass(frozen=True)
class SearchOptions:
    """What the user asked for besides program and space.

    Attributes:
        budget_s: Wall time for the whole search, confirmation included.
        lr_rule: The rule that the user chose, None to follow the optimizer's family.
        seed: Seeds the sampler.
        fence: What keeps trials from changing the user's files.
    """

    budget_s: float
    lr_rule: LrRule | None = None
    seed: int = 0
    fence: FenceOptions = field(default_factory=FenceOptions)


@dataclass(frozen=True)
class SearchInfo:
    """What a run is about; written once when it starts."""

    program: Program
    space: SearchSpace
    options: SearchOptions
    hardware: Hardware
    created: str
    format: int = FORMAT


@dataclass(frozen=True)
class TrialRecord:
    """One config measured on a rig, or why it was not.

    Attributes:
        why: Why this config was tried.
        measurement: The last window.
        turns: Its throughput in each window, and the baseline's near in time.
        speedup: Over the baseline, from all turns; None without a measurement.
        rig: Number of the rig it was measured on, None when no rig was needed.
        cost_s: Wall time it took, starting a rig included.
    """

    config: Config
    why: str
    measurement: Measurement | None
    ending: Ending | None
    turns: tuple[Turn, ...]
    speedup: Interval | None
    rig: int | None
    cost_s: float

    @property
    def outcome(self) -> Outcome:
        """How the trial ended."""
        return self.ending.outcome if self.ending is not None else Outcome.OK


def gradients_sum(records: Iterable[TrialRecord]) -> bool | None:
    """Return whether gradients grow with the batch, by what trials have seen; None if unknown."""
    seen = (r.measurement.effect for r in records if r.measurement is not None)
    signs = (effect.sums for effect in seen if effect is not None)
    return next((sign for sign in signs if sign is not None), None)


class Side(StrEnum):
    """Which config a process of the confirmation runs."""

    BASELINE = "baseline"
    WINNER = "winner"


@dataclass(frozen=True)
class WindowRecord:
    """One window of the confirmation; ``cost_s`` includes starting its process, if it did."""

    side: Side
    config: Config
    measurement: Measurement
    cost_s: float


@dataclass(frozen=True)
class Lease:
    """The living process that works on a run; ids are reused, so its start time counts too."""

    host: str
    pid: int
    started: float


@dataclass(frozen=True)
class BaselineInfo:
    """What the untouched program gave: written once, after the first rig's first steps.

    Attributes:
        startup_s: Seconds from the rig's start to the end of its first, observed steps.
        step_s: Seconds per step of the baseline.
        breakdown: Where its step goes, and its ceilings; empty where there was no time for it.
    """

    profile: Profile
    startup_s: float
    step_s: float
    breakdown: StepBreakdown = field(default_factory=StepBreakdown)
