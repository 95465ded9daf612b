"""Record: what a run stores about each trial, the rounds of its race and its claim.

The study stores these dataclasses as JSON. Whoever renames a field must increase ``FORMAT``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from shlex import quote

from autotune.errors import UsageError
from autotune.knobs.space.space import ResolvedSpace, SearchSpace
from autotune.knobs.space.tuning_variables import unlisted
from autotune.machine.hardware import Gpu, Hardware
from autotune.measurement.examination import StepBreakdown
from autotune.measurement.goal import Goal
from autotune.measurement.interval import Interval, LogRatio
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import ENDED_BY_US, Ending, Outcome
from autotune.measurement.readings import Compilation
from autotune.measurement.turn import Played
from autotune.program.config import Config
from autotune.program.fence_options import FenceOptions
from autotune.program.line.python import more_than_plain
from autotune.program.lr import LrRule
from autotune.program.may_change import MayChange
from autotune.program.profile import Profile
from autotune.program.program import Program, ProgramKind
from autotune.program.sharing_options import SharingOptions
from autotune.program.sources import Files

# Increased when older records cannot be read, or lack something that is needed to go on
FORMAT = 12


@dataclass(frozen=True)
class SearchOptions:
    """What the user requested besides the program and the search space.

    Attributes:
        budget_s: Wall time in seconds for the whole search, confirmation included.
        lr_rule: The learning-rate rule that the user chose; None follows each optimizer's family.
        sampler: What chooses configs: ``autotune``, or one of Optuna's samplers (tpe, gp, random).
        may_change: What the recommended config may change of the training.
        sharing: The study of several machines that the search is a member of; None of a search of
            one machine.
    """

    budget_s: float
    lr_rule: LrRule | None = None
    seed: int = 0
    sampler: str = "autotune"
    fence: FenceOptions = field(default_factory=FenceOptions)
    goal: Goal = field(default_factory=Goal)
    may_change: MayChange = MayChange.ROUNDING
    sharing: SharingOptions | None = None


@dataclass(frozen=True)
class SearchInfo:
    """What a run is about; written when it starts. Only ``resume()`` changes the fence in it.

    Attributes:
        program: What is searched, with a fingerprint of its source.
        hardware: The machine as it was before the program ran; measurements from another one do
            not count.
    """

    program: Program
    space: SearchSpace
    options: SearchOptions
    hardware: Hardware
    created: str
    format: int = FORMAT

    def resolve(self, hardware: Hardware, profile: Profile) -> ResolvedSpace:
        """Return what is searched for this program on this machine.

        Raises:
            UsageError: A requested knob cannot act here, or may not.
        """
        return self.space.resolve(hardware, profile, self.options.may_change)

    @property
    def variables(self) -> set[str]:
        """Environment variables that its program gets, by its command line or from a config."""
        tuned = (name[1:] for name in (*self.space.knobs, *self.space.fixed) if name[0] == "$")
        return {*self.program.env, *tuned}

    @property
    def is_plain(self) -> bool:
        """Whether a best.yaml may start the program by its own word, as this record holds it.

        Else it sets variables or options of Python that may load code, so a person has to type it.
        """
        program = self.program
        is_harmless = not unlisted(program.env) and not more_than_plain(program.python_options)
        return is_harmless and program.kind is not ProgramKind.PICKLED_FUNCTION

    def to_resume(self, name: str, variables: Iterable[str] = ()) -> str:
        """Return the command that goes on with the search of this name.

        It repeats the words that let trials do more than they do by default. A record does not
        speak for itself, because it may be somebody else's.

        Args:
            variables: Environment variables beyond its own.
        """
        named = ",".join(unlisted({*self.variables, *variables}))
        allowed = [f"--allow-env {named}"] if named else []
        return " ".join(["autotune resume", quote(name), *self.options.fence.words, *allowed])

    def refuse_unless_said(
        self, name: str, variables: Collection[str], fence: FenceOptions, allow_env: Collection[str]
    ) -> None:
        """Refuse to go on if the user has not said what it lets trials do beyond the default.

        Args:
            variables: Its own environment variables, and those of the configs in its record.
            fence: What the user said of the fence now. Who names a fence has decided; otherwise
                that of the record takes effect.

        Raises:
            UsageError: The message has the line to type.
        """
        if odd := more_than_plain(self.program.python_options):
            raise UsageError(
                f"The record of '{name}' starts Python with '{odd}', which a record may not ask "
                "for, because it decides what runs. Start a new search."
            )
        words = [] if fence.kind else [w for w in self.options.fence.words if w not in fence.words]
        names = [one for one in unlisted(variables) if one not in allow_env]
        missing = [*words, *([f"--allow-env {','.join(names)}"] if names else [])]
        if missing:
            raise UsageError(
                f"The record of '{name}' lets trials do what a search does not do by itself: "
                f"{' '.join(missing)}. If you trust it, say so:\n"
                f"  {self.to_resume(name, variables)}\nIf not, start a search of your own."
            )

    def machine(self, facts: BaselineInfo | None) -> Hardware:
        """Return the machine with the GPUs that the program sees, once that is known."""
        return self.hardware.as_seen_by(() if facts is None else facts.gpus)


@dataclass(frozen=True)
class TrialRecord:
    """One config that was measured, or the reason why it was not.

    Attributes:
        why: Why it was tried, as users read it.
        measurement: What it did before it took turns with others; None if the trial failed.
        ending: How the trial failed; None if it was measured.
        speedup: Over the baseline, from the rounds of the search until then; None without a
            measurement. ``Study.records`` brings it up to date.
        rig: Number of the rig that was started last; None for a conflict that the sampler proposed,
            for which no rig is needed.
        cost_s: Wall time in seconds that it took besides its turns, starting a rig included.
        expected: The speedup that was expected of it before; None if nothing was.
        is_elsewhere: Whether another machine tried it, which shares the search.
    """

    config: Config
    why: str
    measurement: Measurement | None
    ending: Ending | None
    speedup: Interval | None
    rig: int | None
    cost_s: float
    expected: Interval | None = None
    is_elsewhere: bool = False

    @property
    def outcome(self) -> Outcome:
        """How the trial ended; OK if it was measured."""
        return self.ending.outcome if self.ending is not None else Outcome.OK


def as_elsewhere(record: TrialRecord) -> TrialRecord:
    """Return the record of another machine's trial as this machine keeps it."""
    why = f"{record.why} (on another machine)"
    return replace(record, why=why, rig=None, is_elsewhere=True)


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


@dataclass(frozen=True)
class PlayedRounds:
    """Rounds of the race, as one answer of a rig gave them.

    Attributes:
        rounds: What each of them played, in the same order, by rounds.
    """

    process: int
    configs: tuple[Config, ...]
    rounds: tuple[tuple[Played, ...], ...]

    def __post_init__(self) -> None:
        # A record may hold anything, and what is compared needs a turn of each in every round
        if not self.rounds or {len(turns) for turns in self.rounds} != {len(self.configs) or -1}:
            raise ValueError("rounds have one turn of each config, and there is one of each")

    @cached_property  # a race reads all of them after each answer
    def stretch(self) -> dict[Config, Played]:
        """All rounds together, as one."""
        together = [sum(turns[1:], turns[0]) for turns in zip(*self.rounds, strict=True)]
        return dict(zip(self.configs, together, strict=True))


@dataclass(frozen=True)
class ClaimProcess:
    """One fresh process in which the program as written and a config took turns, or a pair of them.

    Attributes:
        starts_as_written: Whether the process began under the program's own config.
        ratio: Logarithm of the speedup in this process, with its error.
        baseline: What the program as written did alone, before the first switch; None if the
            process began under the config.
        winner: What the config did alone; None if the process began as the program is written.
        cost_s: Wall time in seconds, the start included.
        is_pair: Whether each had a process, because they cannot share one.
        is_of_search: Whether it is the search's process, by turns that came after the config was
            chosen.
        turns: Speedups in single rounds, in their order; of a long process those of every n-th.
        announcement: Name of the one that several machines claim together, and after which it
            began; empty without one.
    """

    config: Config
    starts_as_written: bool
    ratio: LogRatio
    baseline: Measurement | None
    winner: Measurement | None
    rates: tuple[float, float]
    rounds: int
    cost_s: float
    is_pair: bool = False
    is_of_search: bool = False
    turns: tuple[float, ...] = ()
    announcement: str = ""

    def __post_init__(self) -> None:
        if not all(math.isfinite(one) and one > 0 for one in self.turns):
            raise ValueError("the speedup in a round is a positive number")

    @property
    def alone(self) -> tuple[Measurement, ...]:
        """What each of the two did alone, as far as it did."""
        return tuple(one for one in (self.baseline, self.winner) if one is not None)


@dataclass(frozen=True)
class BaselineInfo:
    """What was learned from the untouched program.

    It is written once the baseline was measured, and again with the breakdown.

    Attributes:
        startup_s: Seconds from the rig's start to the end of the first, observed steps.
        breakdown: Where the time of a step goes, and upper bounds of its speed; empty if there was
            no time to profile it.
        first_step_s: Seconds from the rig's start to the end of the first step; None if unknown.
        gpus: The GPUs that the program sees; empty if it trains on the CPU, and in records of
            earlier versions.
        files: What it was seen to import of the user's, its script included.
        page_faults: Of a step; None if they were not counted.
    """

    profile: Profile
    startup_s: float
    step_s: float
    breakdown: StepBreakdown = field(default_factory=StepBreakdown)
    first_step_s: float | None = None
    gpus: tuple[Gpu, ...] = ()
    page_faults: float | None = None
    files: Files = field(default_factory=dict)

    @property
    def before_steps_s(self) -> float:
        """Seconds from the rig's start to the first step, where known; else ``startup_s``."""
        if self.first_step_s is None:
            return self.startup_s
        return max(0.0, self.first_step_s - self.step_s)
