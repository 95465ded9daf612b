"""The baseline: the untouched program observed and measured, or a clear word why it cannot be."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.budget import format_duration
from autotune.errors import BudgetError
from autotune.failures import program_error
from autotune.measurement import Anatomy, Measurement
from autotune.outcome import Ending
from autotune.profile import Profile
from autotune.record import BaselineFacts, Head
from autotune.session import Session
from autotune.setting import Setting
from autotune.space import ResolvedSpace

TRIALS_WORTH_S = 10.0  # a search that could not measure this long would not search
DISSECTION_WORTH_S = 45.0  # for trials: taking the program apart took 2-7 s on 2 cores


@dataclass(frozen=True)
class Baseline:
    """What the untouched program revealed, and what can be searched because of it."""

    profile: Profile
    measurement: Measurement
    anatomy: Anatomy
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
    setting = _setting(space, facts.profile, study.head)
    measurement = next(r.measurement for r in records if r.measurement is not None)
    session.objective.set_up(space, setting, measurement.step_s)
    session.console.resumed(records)
    return Baseline(facts.profile, measurement, facts.anatomy, space, setting)


def _setting(space: ResolvedSpace, profile: Profile, head: Head) -> Setting:
    return Setting.as_written(space.baseline, profile, head.options.lr_rule, space.flags)


def _measure(session: Session) -> Baseline:
    study, objective = session.study, session.objective
    head = study.head
    session.console.phase("baseline")
    ready = objective.observe(session.until_stopped)
    if isinstance(ready, Ending):
        raise program_error(head.program, ready)
    space = head.space.resolve(head.hardware, ready.profile)
    setting = _setting(space, ready.profile, head)
    objective.set_up(space, setting)
    trial = study.ask_for(space.baseline, space)
    record = objective.baseline(session.until_stopped)
    study.tell(trial, record)
    if record.ending is not None:
        raise program_error(head.program, record.ending)
    assert record.measurement is not None, "a trial without ending has a measurement"
    session.console.trial(0, record, space)
    facts = BaselineFacts(ready.profile, ready.startup_s, record.measurement.step_s)
    study.facts = facts  # from here on the session knows how long a confirmation takes
    if session.budget.left_s - session.reserve_s > DISSECTION_WORTH_S:
        study.facts = facts = replace(facts, anatomy=objective.dissect(session.until_confirmation))
    return Baseline(ready.profile, record.measurement, facts.anatomy, space, setting)


def _too_short(session: Session, needed_s: float) -> BudgetError:
    return BudgetError(
        f"A budget of {format_duration(session.budget.total_s)} is too short: the baseline took "
        f"{format_duration(session.budget.spent_s)}, and confirming a winner takes "
        f"{format_duration(session.round_s)} more. The baseline is kept; go on with at least:\n"
        f"  autotune resume {session.run.name} --budget {round(needed_s)}s"
    )
