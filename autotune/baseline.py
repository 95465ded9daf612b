"""The baseline: the untouched program observed and measured, or a clear word why it cannot be."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.budget import format_duration
from autotune.errors import BudgetError, ProgramError
from autotune.lr import rule_for
from autotune.measurement import Measurement
from autotune.outcome import Ending, Outcome
from autotune.profile import Profile
from autotune.record import BaselineFacts, Head
from autotune.session import Session
from autotune.setting import Setting
from autotune.space import ResolvedSpace

TRIALS_WORTH_S = 10.0  # a search that could not measure this long would not search


@dataclass(frozen=True)
class Baseline:
    """What the untouched program revealed, and what can be searched because of it."""

    profile: Profile
    measurement: Measurement
    space: ResolvedSpace
    setting: Setting


def measure_baseline(session: Session) -> Baseline:
    """Observe and measure the untouched program, unless an earlier sitting did.

    Raises:
        ProgramError: when the program fails by itself or trains no step.
        BudgetError: when the budget cannot hold a confirmation as well.
        UsageError: when a knob that the user named cannot act here.
    """
    baseline = _from_record(session) or _measure(session)
    needed_s = session.budget.spent_s + session.round_s + TRIALS_WORTH_S
    if session.budget.total_s < needed_s and len(session.study.records) <= 1:
        raise _too_short(session, needed_s)
    return baseline


def _from_record(session: Session) -> Baseline | None:
    study = session.study
    facts, records = study.facts, study.records
    if facts is None:
        return None
    space = study.head.space.resolve(study.head.hardware, facts.profile)
    setting = _setting(study.head, facts.profile, space)
    measurement = next(r.measurement for r in records if r.measurement is not None)
    session.objective.set_up(space, setting, measurement.step_s)
    session.console.resumed(records)
    return Baseline(facts.profile, measurement, space, setting)


def _measure(session: Session) -> Baseline:
    study, objective = session.study, session.objective
    head = study.head
    session.console.phase("baseline")
    ready = objective.observe(session.until_stopped)
    if isinstance(ready, Ending):
        raise _program_error(head, ready)
    space = head.space.resolve(head.hardware, ready.profile)
    setting = _setting(head, ready.profile, space)
    objective.set_up(space, setting)
    trial = study.ask_for(space.baseline, space)
    record = objective.baseline(session.until_stopped)
    study.tell(trial, record)
    if record.ending is not None:
        raise _program_error(head, record.ending)
    assert record.measurement is not None, "a trial without ending has a measurement"
    study.facts = BaselineFacts(ready.profile, ready.startup_s, record.measurement.step_s)
    session.console.trial(0, record, space)
    return Baseline(ready.profile, record.measurement, space, setting)


def _setting(head: Head, profile: Profile, space: ResolvedSpace) -> Setting:
    """The baseline's setting, against which every other config is applied."""
    families = [name for optimizer in profile.optimizers for name in optimizer.families]
    return Setting(
        config=space.baseline,
        baseline=space.baseline,
        loader=profile.training_loader,
        lr_rule=head.options.lr_rule or rule_for(families),
        own_knobs=tuple(profile.config_reads),
        device=profile.device,
    )


def _too_short(session: Session, needed_s: float) -> BudgetError:
    return BudgetError(
        f"A budget of {format_duration(session.budget.total_s)} is too short: the baseline took "
        f"{format_duration(session.budget.spent_s)}, and confirming a winner takes "
        f"{format_duration(session.round_s)} more. The baseline is kept; go on with at least:\n"
        f"  autotune resume {session.run.name} --budget {round(needed_s)}s"
    )


def _program_error(head: Head, ending: Ending) -> ProgramError:
    return ProgramError(_complaint(head, ending), ending.program_traceback)


def _complaint(head: Head, ending: Ending) -> str:
    name = head.program.name
    match ending.outcome:
        case Outcome.RAN_OUT:
            return (
                f"There is nothing to measure in {head.program}: {ending.reason}, and a baseline "
                "needs a few dozen. Is this the training script? Give it more data or epochs."
            )
        case Outcome.INTERRUPTED:
            return (
                f"Stopped before the baseline of {name} was measured; there is nothing to report."
            )
        case Outcome.OUT_OF_MEMORY | Outcome.HOST_OUT_OF_MEMORY:
            return (
                f"{name} does not fit as it is written: {ending.reason}. "
                "Make its batch or its model smaller first."
            )
        case Outcome.HUNG:
            return f"{name} hangs by itself: {ending.reason}. Its last output is above."
        case _:
            return f"{name} fails by itself, before autotune changed anything: {ending.reason}"
