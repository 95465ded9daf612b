"""Compare two configs of a program, as a search confirms its winner: fresh processes, in turns.

``autotune compare`` runs it. The noise floor is the comparison of the program with itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from autotune.errors import UsageError
from autotune.knobs.space.space import ResolvedSpace
from autotune.knobs.space.spacefile import load
from autotune.machine.hardware import Hardware
from autotune.measurement.interval import Interval
from autotune.measurement.outcome import Ending, Outcome
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config, KnobValue
from autotune.program.fence_options import STRONGEST, FenceOptions
from autotune.program.profile import Profile
from autotune.program.program import Program
from autotune.results.bestfile import BestFile
from autotune.rig.failures import program_error
from autotune.rig.open_rig import Reports
from autotune.tuning.budget import Budget
from autotune.tuning.confirm import ConfirmationPlan, Failure, confirm
from autotune.tuning.confirmation import Confirmation, Round
from autotune.tuning.events import Events
from autotune.tuning.interrupts import ENDING, InterruptCounter
from autotune.tuning.start import first_start
from autotune.tuning.start.first_start import START_SILENCE_S
from autotune.tuning.start.observe import throwaway_rigs
from autotune.tuning.surroundings import THIS_MACHINE, Surroundings


class Difference(StrEnum):
    """Which of two configs is faster, of the second as users read it."""

    FASTER = "faster"
    SLOWER = "slower"
    NONE = "no difference to be seen"


@dataclass(frozen=True)
class Comparison:
    """What a comparison of two configs showed.

    Attributes:
        first: The config that counts as 1.
        second: The config that is compared with it.
        confirmation: What fresh processes measured.
        rounds: Their windows.
        is_one_each: Whether each window ran in another process.
    """

    first: Config
    second: Config
    confirmation: Confirmation
    rounds: tuple[Round, ...]
    is_one_each: bool

    @property
    def speedup(self) -> Interval:
        """Of the second config over the first, with its 95 % interval."""
        return self.confirmation.speedup

    @property
    def difference(self) -> Difference:
        """Which one is faster, if that can be told from noise."""
        if not self.confirmation.says_enough:
            return Difference.NONE
        if self.speedup.low > 1:
            return Difference.FASTER
        return Difference.SLOWER if self.speedup.high < 1 else Difference.NONE

    @property
    def most_pct(self) -> float:
        """The difference that may still be there, in percent of the first config's speed."""
        return 100 * max(self.speedup.high - 1, 1 - self.speedup.low, 0.0)


def compare(
    program: Program,
    hardware: Hardware,
    sides: tuple[BestFile | None, BestFile | None],
    budget_s: float,
    events: Events,
    fence: FenceOptions = STRONGEST,
    surroundings: Surroundings = THIS_MACHINE,
) -> Comparison:
    """Compare two configs of a program.

    Rounds stop as they do in a search: at a planned look that decides, after the last one, or when
    the budget is used up. Only the correction by pilots is left out, because a search learns it
    from its trials. Ctrl-C ends the current window; the windows until then count.

    Args:
        program: The program.
        hardware: This machine.
        sides: The files with the configs; None is the program as written.
        budget_s: Most wall time in seconds.
        events: Told what happens.
        fence: What the user requested of the fence.
        surroundings: Clock and rigs; tests pass scripted ones.

    Raises:
        UsageError: when a knob of a config cannot act here.
        FenceError: when nothing keeps the program from changing the user's files.
        ProgramError: when the program fails or trains too few steps, or Ctrl-C comes before two
            pairs of windows were measured.
    """
    budget = Budget(budget_s, clock=surroundings.clock)
    reports = Reports(events.on_progress, events.warn, events.note)
    with (
        InterruptCounter(lambda _: events.warn(ENDING)) as stop,
        throwaway_rigs(program, hardware, fence, reports, surroundings) as rigs,
    ):
        events.on_fence(rigs.fence)

        def should_stop() -> Ending | None:
            if stop.requests:
                return Ending(Outcome.INTERRUPTED, "stopped by Ctrl-C")
            return None

        events.on_phase("observing the program")
        # Only the profile is needed from this process; the rounds start their own.
        started = first_start.observe(rigs, should_stop, START_SILENCE_S)
        if isinstance(started, Ending):
            raise program_error(program, started)
        with started:
            profile = started.ready.profile
        changes = tuple({} if side is None else side.applied.changes() for side in sides)
        space = _space(changes, hardware, profile)
        first, second = (space.canonical(space.baseline.replace(**c)) for c in changes)
        base = _applied(space, profile, first, sides)
        itself = first == second
        events.on_phase(
            "comparing the program with itself, in fresh processes"
            if itself
            else "comparing two configs, in fresh processes"
        )
        plan = ConfirmationPlan(rigs, space, base, second, should_stop, claims=False)

        def has_time_for(seconds: float, *, is_needed: bool) -> bool:  # noqa: ARG001
            return not stop.requests and budget.left_s > seconds

        rounds: list[Round] = []
        outcome = confirm(plan, [], rounds.append, has_time_for)
    if isinstance(outcome, Failure):
        raise program_error(program, outcome.ending)
    return Comparison(first, second, outcome, tuple(rounds), plan.needs_own_process)


def _space(
    changes: tuple[Mapping[str, KnobValue], ...], hardware: Hardware, profile: Profile
) -> ResolvedSpace:
    """Return a space that holds all values of the configs.

    Raises:
        UsageError: A knob cannot act here.
    """
    values: dict[str, list[KnobValue]] = {}
    for its in changes:
        for knob, value in its.items():
            values.setdefault(knob, []).append(value)
    space = load("default")
    return (space.with_values(values) if values else space).resolve(hardware, profile)


def _applied(
    space: ResolvedSpace,
    profile: Profile,
    first: Config,
    sides: tuple[BestFile | None, BestFile | None],
) -> AppliedConfig:
    """Return the first side, with all that a process needs to apply either of them.

    Raises:
        UsageError: The files have different learning-rate rules, and a run has one.
    """
    rules = {side.learning.lr_rule for side in sides if side is not None}
    if len(rules) > 1:
        raise UsageError(
            "The two files scale learning rates by different rules "
            f"({', '.join(sorted(rules))}). Set the same lr_rule in both."
        )
    written = AppliedConfig.as_written(
        space.baseline, profile, next(iter(rules), None), space.flags
    )
    return AppliedConfig(
        config=first,
        baseline=space.baseline,
        traits=written.traits,
        lr_rule=written.lr_rule,
        sums=next((s.learning.sums for s in sides if s is not None), None),
    )


def as_data(found: Comparison) -> dict[str, Any]:
    """Return a comparison as data that JSON can hold, with stable keys."""
    return {
        "difference": str(found.difference),
        "speedup": vars(found.speedup),
        "most_pct": round(found.most_pct, 2),
        "processes": found.confirmation.rounds * (2 if found.is_one_each else 1),
        "changes": dict(found.second.changes_from(found.first)),
    }
