"""Compare two configs or two commits, as a search confirms its winner: fresh processes, in turns.

``autotune compare`` runs it. The noise floor is the comparison of the program with itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from autotune.errors import BudgetError, ProgramError, UsageError
from autotune.knobs.space.space import ResolvedSpace
from autotune.knobs.space.spacefile import load
from autotune.machine.hardware import Hardware
from autotune.measurement.gate import Gate, Verdict
from autotune.measurement.interval import Interval
from autotune.measurement.measurement import disturbance_of
from autotune.measurement.outcome import NOBODYS, Ending, Outcome
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config, KnobValue
from autotune.program.fence_options import STRONGEST, FenceOptions
from autotune.program.lr import PARTS
from autotune.program.profile import Profile
from autotune.program.program import Program
from autotune.program.revision import WRITTEN
from autotune.results.bestfile import BestFile
from autotune.results.data.comparison import (
    ComparisonData,
    Difference,
    GatePart,
    SidePart,
    TrainingPart,
)
from autotune.results.rehearsals import RehearsalRecord, blames, survives, warning
from autotune.rig.failures import program_error
from autotune.rig.open_rig import Reports
from autotune.rig.rig_factory import RigFactory
from autotune.tuning.budget import ENDING, Budget, InterruptCounter, Until
from autotune.tuning.checking.self_check import NOT_COMPARED, SelfCheck
from autotune.tuning.checking.short_runs import ShortRuns, Subject
from autotune.tuning.events import Events
from autotune.tuning.live_rig import WARM_UP_S, LiveRig, Stay
from autotune.tuning.plan import MOST_FOR_REHEARSAL, PROCESS
from autotune.tuning.proof import Confirmation, Failure, Match, OtherProgram, ProcessTime, prove
from autotune.tuning.start.observe import throwaway_rigs
from autotune.tuning.surroundings import THIS_MACHINE, Surroundings

# With which ``autotune compare --fail-if-slower`` ends, as ``cli/exit_status.py`` says
STATUSES: Mapping[Verdict, Literal[0, 1, 4]] = {
    Verdict.PASSED: 0,
    Verdict.FAILED: 1,
    Verdict.UNDECIDED: 4,
}
SAME_STEP = 0.01  # by which steps may differ in samples; the last batch of an epoch is smaller


@dataclass(frozen=True)
class ComparedSide:
    """One of two sides: a program, and the config that it runs under.

    Attributes:
        file: Holds the config; None is the program as written.
        commit: Full name of the commit that the program is of; empty for the files of today.
    """

    program: Program
    file: BestFile | None = None
    name: str = WRITTEN
    commit: str = ""

    @property
    def changes(self) -> Mapping[str, KnobValue]:
        """The knobs that its file changes."""
        return {} if self.file is None else self.file.applied.changes()


@dataclass(frozen=True)
class Comparison:
    """What a comparison of two sides showed.

    Attributes:
        training: What the config of one side was seen to train; None where that was not asked.
        gate: What may not be slower by how much; None if nobody asked.
    """

    sides: tuple[ComparedSide, ComparedSide]
    first: Config
    second: Config
    confirmation: Confirmation
    is_by_steps: bool = False
    training: RehearsalRecord | None = None
    gate: Gate | None = None

    @property
    def processes(self) -> int:
        """How many fresh processes were compared."""
        each = 2 if self.confirmation.is_apart else 1
        return each * len(self.confirmation.processes)

    @property
    def speedup(self) -> Interval:
        """Of the second side over the first."""
        return self.confirmation.speedup

    @property
    def difference(self) -> Difference:
        """Which one is faster, if that can be told from noise."""
        low, high = self.speedup.low, self.speedup.high
        if low <= 1 <= high:
            return Difference.NONE
        if not self.confirmation.is_enough:
            return Difference.UNCONFIRMED
        return Difference.FASTER if low > 1 else Difference.SLOWER

    @property
    def trains_otherwise(self) -> bool:
        """Whether the config trains something else where it must not, or fails."""
        return self.training is not None and self.training.is_blamed

    @property
    def verdict(self) -> Verdict | None:
        """What the gate says; None without one."""
        if self.gate is None:
            return None
        return Verdict.FAILED if self.trains_otherwise else self.gate.verdict(self.confirmation)

    @property
    def training_note(self) -> str:
        """Whether the config trains what the program trains, as a sentence; empty if unasked."""
        if self.training is None:
            return ""
        records = (self.training,)
        said = (*blames(records), self.training.training_note)
        return next(filter(None, said), "") or warning(records, self.training.config)

    @property
    def gate_reason(self) -> str:
        """Why the gate says what it says, as a sentence without its full stop; empty without."""
        if self.gate is None:
            return ""
        second, most = self.sides[1].name, f"{self.gate.slower_pct:g} %"
        if self.training is not None and self.training.is_blamed:
            config, written = sorted(self.sides, key=lambda side: side.file is None)
            if self.training.failure:
                return f"The program fails under {config.name}, and not as it is written"
            return f"{config.name} trains something else than {written.name}"
        match self.gate.verdict(self.confirmation):
            case Verdict.PASSED:
                return f"{second} is not slower by {most}: that is ruled out"
            case Verdict.FAILED:
                slower_pct = 100 * (1 - self.speedup.estimate)
                return f"{second} is {slower_pct:.0f} % slower, and {most} is too much"
            case Verdict.UNDECIDED:
                is_enough = self.confirmation.is_enough
                what = f"A slowdown by {most} is neither ruled out nor sure"
                why = what if is_enough else "Too few processes count"
                return f"{why}. A longer --budget, or a quieter machine, decides"

    @property
    def most_pct(self) -> float:
        """The difference that may still be there, in percent of the first side's speed."""
        return 100 * max(self.speedup.high - 1, 1 - self.speedup.low, 0.0)

    @property
    def samples_per_s(self) -> tuple[float, float]:
        """The median throughput of each side."""
        first, second = self.confirmation.rates
        return first.estimate, second.estimate

    @property
    def samples_per_step(self) -> tuple[float, float]:
        """The mean number of samples in a step of each side."""
        sides = self.confirmation.alone
        first, second = (fmean([m.samples_per_step for m in side] or [0.0]) for side in sides)
        return first, second

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know of the figures, as sentences without their full stop."""
        notes: list[str] = []
        first, second = self.samples_per_step
        if first and second and abs(second / first - 1) > SAME_STEP:
            unit = "steps/s" if self.is_by_steps else "samples/s"
            notes.append(
                f"A step has {first:,.0f} samples in {self.sides[0].name} and {second:,.0f} in "
                f"{self.sides[1].name}, so {unit} are compared"
            )
        if dropped := self.confirmation.dropped:
            why = disturbance_of([one for pair in dropped for one in pair.alone])
            pairs = "1 pair does" if len(dropped) == 1 else f"{len(dropped)} pairs do"
            notes.append(f"{pairs} not count: {why}")
        if self.confirmation.lack:
            mend = "an idle machine" if dropped else "a longer --budget"
            notes.append(f"{self.confirmation.lack}: {mend} decides")
        return tuple(notes)


@dataclass(frozen=True)
class CompareOptions:
    """How two sides are compared.

    Attributes:
        gate: How much slower the second side may not be; processes are then run as long as that
            is neither ruled out nor sure.
    """

    budget_s: float
    fence: FenceOptions = STRONGEST
    gate: Gate | None = None


@dataclass(frozen=True)
class _Observed:
    """A program that was started once.

    Attributes:
        step_s: Seconds of a step as written; None where nobody asked, or it was not seen.
    """

    program: OtherProgram
    profile: Profile
    startup_s: float
    step_s: float | None


def compare(
    sides: tuple[ComparedSide, ComparedSide],
    hardware: Hardware,
    options: CompareOptions,
    events: Events,
    surroundings: Surroundings = THIS_MACHINE,
) -> Comparison:
    """Compare two configs of a program, or two programs.

    Processes stop as they do in a search: when it is decided, after the last one, or when the
    budget is used up. Ctrl-C ends the current process; those until then count. Two programs are
    compared by samples/s, each in processes of its kind. Where one side is a config and the other
    one the program as written, it is first seen whether both train the same.

    Raises:
        UsageError: when a knob of a config cannot act here.
        BudgetError: when the budget ends before the first fresh process.
        FenceError: when nothing keeps the program from changing the user's files.
        ProgramError: when a program fails or trains too few steps, or Ctrl-C comes before a fresh
            process is over.
    """
    budget = Budget(options.budget_s, clock=surroundings.clock)
    with InterruptCounter(lambda _: events.warn(ENDING)) as stop, ExitStack() as stack:
        reports = Reports(
            events.on_progress,
            events.warn,
            events.note,
            is_urgent=lambda: stop.is_urgent,
            signalled=lambda: stop.signalled,
        )
        should_stop = Until(stop.ending, lambda: budget.overdraft_s, "the budget is used up")

        def observed(side: ComparedSide, both: Sequence[ComparedSide]) -> _Observed:
            rigs = stack.enter_context(
                throwaway_rigs(side.program, hardware, options.fence, reports, surroundings)
            )
            if side is sides[0]:
                events.on_fence(rigs.fence)
            events.note(f"Observing {side.name if side.commit else 'the program'}.")
            return _observed(rigs, side, both, should_stop)

        for busy in surroundings.look(hardware):
            events.warn(busy)
        began_s = surroundings.clock()
        first, second = sides
        other = None
        if first.program == second.program:
            seen = observed(first, sides)
            one = seen.program
            winner = one.space.canonical(one.space.baseline.replace(**second.changes))
        else:
            seen, other = observed(first, [first]), observed(second, [second]).program
            one, winner = seen.program, other.applied.config
        match = Match(one.rigs, one.space, one.applied, winner, should_stop, other=other)
        start_s = (surroundings.clock() - began_s) / (2 if other is not None else 1)
        training = None
        if seen.step_s is not None and (configs := {*match.configs} - {one.space.baseline}):
            events.note("Comparing what is trained, in short epochs.")
            training = _trained(seen, configs.pop(), budget, should_stop)
        what = "two programs" if other is not None else "two configs"
        if other is None and one.applied.config == winner:
            what = "the program with itself"
        events.note(f"Comparing {what}, in fresh processes.")
        outcome = prove(
            match,
            [],
            lambda _: None,
            lambda _: 0.0 if stop.requests else budget.left_s,
            ProcessTime(start_s + PROCESS.seconds),
            options.gate,
        )
    if isinstance(outcome, Failure):
        failed = second if outcome.is_of_winner else first
        raise _failure(failed, outcome.ending, in_turns=True)
    is_by_steps = other is None and bool(one.applied.traits.bounded_by_steps)
    configs_of = (one.applied.config, winner)
    return Comparison(sides, *configs_of, outcome, is_by_steps, training, options.gate)


def _observed(
    rigs: RigFactory, side: ComparedSide, both: Sequence[ComparedSide], should_stop: Until
) -> _Observed:
    """Start a program once; the rounds start others.

    How long its steps take is seen where its training is to be compared with that of a config: it
    is one of *both*, and the other one has a file.
    """
    with LiveRig(rigs) as live:
        ready = live.observe(should_stop)
        if isinstance(ready, Ending):
            raise _failure(side, ready)
        space = _space([one.changes for one in both], rigs.hardware, ready.profile)
        files = [one.file for one in both if one.file is not None]
        written = _written(space, ready.profile, files)
        step_s = None
        if len(both) > 1 and len(files) == 1:
            live.set_up(space, written)
            stay = live.stay(space.baseline, should_stop, WARM_UP_S)
            step_s = stay.step_s if isinstance(stay, Stay) else None
    config = space.canonical(space.baseline.replace(**side.changes))
    program = OtherProgram(rigs, space, replace(written, config=config))
    return _Observed(program, ready.profile, ready.startup_s, step_s)


def _trained(
    seen: _Observed, config: Config, budget: Budget, should_stop: Until
) -> RehearsalRecord:
    """Return what a config trains, next to the program as written, in a share of the budget.

    A config under which the program fails is blamed if the program passes as it is written.
    """
    assert seen.step_s is not None, "the steps of the program as written were seen"
    rigs, space = seen.program.rigs, seen.program.space
    written = replace(seen.program.applied, config=space.baseline)
    subject = Subject(rigs, written, seen.startup_s, seen.step_s)
    runs = ShortRuns(subject, budget, (1 - MOST_FOR_REHEARSAL) * budget.left_s, should_stop)
    normalises = seen.profile.model.batch_norm_layers > 0
    check = SelfCheck(runs, space, seen.step_s, {}, normalises=normalises)
    plan = check.plan_to_rehearse(config, math.inf)
    own = runs.timed(config, plan, check.cost_s)
    if own.has_failed:
        as_written = runs.timed(space.baseline, plan, check.cost_s)
        guilty = config.changes_from(space.baseline) if survives(as_written, own) else {}
        return RehearsalRecord(config, own, as_written, guilty)
    if own.seen is None or not own.has_passed:
        return RehearsalRecord(config, own, training=NOT_COMPARED)
    trace, own = own.seen.trace, replace(own, seen=replace(own.seen, trace=None))
    return check.check(config, own, trace)


def _failure(
    side: ComparedSide, ending: Ending, *, in_turns: bool = False
) -> ProgramError | BudgetError:
    if ending.outcome is Outcome.OUT_OF_TIME:
        return BudgetError("There was no time for a fresh process. Set a longer --budget.")
    if in_turns and side.file is not None and ending.outcome not in NOBODYS:
        return ProgramError(
            f"{side.program.name} fails under {side.name}: {ending.reason.rstrip('.')}",
            ending.program_traceback,
            mend="As it is written, it trained before. Search again.",
        )
    error = program_error(side.program, ending)
    if not side.commit:
        return error
    return error.of(side.name)


def _space(
    changes: Sequence[Mapping[str, KnobValue]], hardware: Hardware, profile: Profile
) -> ResolvedSpace:
    values: dict[str, list[KnobValue]] = {}
    for its in changes:
        for knob, value in its.items():
            values.setdefault(knob, []).append(value)
    space = load("default")
    return (space.with_values(values) if values else space).resolve(hardware, profile)


def _written(space: ResolvedSpace, profile: Profile, files: Sequence[BestFile]) -> AppliedConfig:
    rules = {file.lr_rule for file in files if file.applied.changes().keys() & {*PARTS}}
    if len(rules) > 1:
        raise UsageError(
            "The two files scale learning rates by different rules "
            f"({', '.join(sorted(rules))}). Set the same lr_rule in both."
        )
    return AppliedConfig.as_written(space.baseline, profile, next(iter(rules), None), space.flags)


def as_data(found: Comparison) -> dict[str, Any]:
    """Return a comparison as data that JSON can hold, with stable keys."""
    sides = [
        SidePart(
            name=side.name,
            commit=side.commit or None,
            samples_per_s=round(samples_per_s, 2),
            samples_per_step=round(samples_per_step, 2),
        )
        for side, samples_per_s, samples_per_step in zip(
            found.sides, found.samples_per_s, found.samples_per_step, strict=True
        )
    ]
    data = ComparisonData(
        finding=found.difference,
        speedup=found.speedup,
        most_pct=round(found.most_pct, 2),
        processes=found.processes,
        ratios=[round(math.exp(one.ratio.value), 4) for one in found.confirmation.processes],
        changes=dict(found.second.changes_from(found.first)),
        sides=(sides[0], sides[1]),
        training=_training(found),
        gate=_gate(found),
        notes=found.notes,
    )
    return data.as_json()


def _training(found: Comparison) -> TrainingPart | None:
    record = found.training
    if record is None:
        return None
    return TrainingPart(
        sameness=None if record.training is None else record.training.sameness,
        is_other=found.trains_otherwise,
        note=found.training_note,
    )


def _gate(found: Comparison) -> GatePart | None:
    if found.gate is None or found.verdict is None:
        return None
    return GatePart(
        fail_if_slower_pct=found.gate.slower_pct,
        verdict=found.verdict,
        status=STATUSES[found.verdict],
        reason=found.gate_reason,
    )
