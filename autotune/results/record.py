"""Record: what a run stores about each trial and each window of its confirmation.

The study stores these dataclasses as JSON. Whoever renames a field must add the old name to
``former_names``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from autotune.knobs.space.space import SearchSpace
from autotune.machine.hardware import Gpu, Hardware
from autotune.measurement.compilation import Compilation
from autotune.measurement.goal import Goal
from autotune.measurement.interval import Interval
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import ENDED_BY_US, Ending, Outcome
from autotune.measurement.step_breakdown import StepBreakdown
from autotune.measurement.visit import Visit
from autotune.program.config import Config
from autotune.program.fence_options import FenceOptions
from autotune.program.lr import LrRule
from autotune.program.profile import Profile
from autotune.program.program import Program

# Increased when older records lack something that is needed to go on with a search. Profiles of
# format 2 do not say whether a knob changes what is trained.
FORMAT = 3


@dataclass(frozen=True)
class SearchOptions:
    """What the user requested besides the program and the search space.

    Attributes:
        budget_s: Wall time in seconds for the whole search, confirmation included.
        lr_rule: The learning-rate rule that the user chose; None follows each optimizer's family.
        seed: Seeds the sampler and other random choices.
        sampler: What chooses configs: ``autotune``, or one of Optuna's samplers (tpe, gp, random).
        fence: How trials are kept from changing the user's files.
        goal: What is compared, and within which limits.
        accepts_learning_change: Whether a config may be recommended whose training was seen to
            differ from that of the program as written.
        checks_learning: Whether what a larger global batch learns is checked, beyond the budget.
    """

    budget_s: float
    lr_rule: LrRule | None = None
    seed: int = 0
    sampler: str = "autotune"
    fence: FenceOptions = field(default_factory=FenceOptions)
    goal: Goal = field(default_factory=Goal)
    accepts_learning_change: bool = False
    checks_learning: bool = False


@dataclass(frozen=True)
class SearchInfo:
    """What a run is about; written once when it starts and never changed.

    Attributes:
        program: What is searched, with a fingerprint of its source.
        space: The knobs and values that the user wants searched.
        options: Budget, seed and the like.
        hardware: The machine as it was before the program ran; measurements from another one do
            not count.
        created: When the search started, in ISO 8601 (UTC).
        format: Version of the record's format.
    """

    program: Program
    space: SearchSpace
    options: SearchOptions
    hardware: Hardware
    created: str
    format: int = FORMAT

    def machine(self, facts: BaselineInfo | None) -> Hardware:
        """Return the machine with the GPUs that the program sees, once that is known."""
        return self.hardware.as_seen_by(() if facts is None else facts.gpus)


AGAIN = "measured again, because it may be the best"  # why a trial repeats a config


@dataclass(frozen=True)
class TrialRecord:
    """One config that was measured, or the reason why it was not.

    A config that may be the best has several records.

    Attributes:
        config: The config, canonical.
        why: Why it was tried, as users read it.
        measurement: Its visit in full; None if the trial failed.
        ending: How the trial failed; None if it was measured.
        speedup: Over the baseline, from all visits of the search until then; None without a
            measurement. ``speedups.reread()`` brings it up to date.
        rig: Number of the rig that was started last; None for a conflict that the sampler proposed,
            for which no rig is needed.
        cost_s: Wall time in seconds that the trial took, starting a rig included.
        visits: The visit of its config; several in records of earlier versions.
        baseline_visits: Visits of the baseline that were made during the trial.
        expected: The speedup that was expected of it before; None if nothing was.
    """

    config: Config
    why: str
    measurement: Measurement | None
    ending: Ending | None
    speedup: Interval | None
    rig: int | None
    cost_s: float
    visits: tuple[Visit, ...] = ()
    baseline_visits: tuple[Visit, ...] = ()
    expected: Interval | None = None

    @property
    def is_again(self) -> bool:
        """Whether its config had been measured before."""
        return self.why == AGAIN

    @property
    def outcome(self) -> Outcome:
        """How the trial ended; OK if it was measured."""
        return self.ending.outcome if self.ending is not None else Outcome.OK


def latest(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return the last record of each config that says something of it.

    A config that fails when it is measured again has failed. One whose program merely ended, or
    that the user or the budget ended, keeps what it had.
    """
    found: dict[Config, TrialRecord] = {}
    for record in records:
        if record.config not in found or record.outcome not in {*ENDED_BY_US, Outcome.RAN_OUT}:
            found[record.config] = record
    return [*found.values()]


def slowest_compilation(records: Sequence[TrialRecord], config: Config) -> Compilation | None:
    """Return what compiling costs a run of a config with an empty cache; None if it does not.

    That is the slowest compilation of any trial in the same mode, because later ones reuse the
    cache that the run's rigs share.
    """
    mode = config.get("compile", "off")
    if mode == "off":
        return None
    seen = [
        record.measurement.compilation
        for record in records
        if record.measurement is not None and record.config.get("compile") == mode
    ]
    return max(filter(None, seen), key=lambda c: c.seconds, default=None)


def gradients_sum(records: Iterable[TrialRecord]) -> bool | None:
    """Return whether gradients grow with the batch, as those of a loss that sums over samples do.

    The first trial that saw a change of the batch decides; None if none did.
    """
    seen = (r.measurement.effect for r in records if r.measurement is not None)
    signs = (effect.sums for effect in seen if effect is not None)
    return next((sign for sign in signs if sign is not None), None)


class Side(StrEnum):
    """Which of the two compared configs a window of the confirmation ran.

    The values are stored in the study.
    """

    BASELINE = "baseline"
    WINNER = "winner"


@dataclass(frozen=True)
class WindowRecord:
    """One window of the confirmation.

    Attributes:
        side: Baseline or winner.
        config: The config that ran.
        measurement: What the window measured.
        cost_s: Wall time in seconds, including the start of its process if it was the first in it.
    """

    side: Side
    config: Config
    measurement: Measurement
    cost_s: float


Round = list[WindowRecord]
"""The windows of one fresh process of a confirmation, or of a pair of processes."""


@dataclass(frozen=True)
class Lease:
    """The process that works on a run.

    Process ids are reused, so the start time is part of a process's identity.

    Attributes:
        host: Host name.
        pid: Process id on that host.
        started: Start time of the process, in seconds since the epoch.
    """

    host: str
    pid: int
    started: float


@dataclass(frozen=True)
class BaselineInfo:
    """What was learned from the untouched program.

    It is written once the baseline was measured, and again with the breakdown.

    Attributes:
        profile: What the program's first steps revealed.
        startup_s: Seconds from the rig's start to the end of the first, observed steps.
        step_s: Seconds per step of the baseline.
        breakdown: Where the time of a step goes, and upper bounds of its speed; empty if there was
            no time to profile it.
        first_step_s: Seconds from the rig's start to the end of the first step; None if unknown.
        gpus: The GPUs that the program sees; empty if it trains on the CPU, and in records of
            earlier versions.
    """

    profile: Profile
    startup_s: float
    step_s: float
    breakdown: StepBreakdown = field(default_factory=StepBreakdown)
    first_step_s: float | None = None
    gpus: tuple[Gpu, ...] = ()

    @property
    def before_steps_s(self) -> float:
        """Seconds from the rig's start to the first step, where known; else ``startup_s``."""
        if self.first_step_s is None:
            return self.startup_s
        return max(0.0, self.first_step_s - self.step_s)
