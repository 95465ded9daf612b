"""The baseline: the untouched program observed and measured, or a clear word why it cannot be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import monotonic

from autotune.errors import AutotuneError, BudgetError
from autotune.failures import program_error
from autotune.first_start import examined
from autotune.measurement import Anatomy, Measurement
from autotune.outcome import Cause, Ending, Outcome
from autotune.profile import Profile
from autotune.record import BaselineFacts, Head, gradients_sum
from autotune.session import Session
from autotune.setting import Setting
from autotune.space import ResolvedSpace
from autotune.startup import unmeasured

LEAST_BUDGET_S = 5.0  # importing torch alone took 2-6 s on 2 cores
DISSECTION_WORTH_S = 45.0  # for trials: taking the program apart took 2-7 s on 2 cores
DISSECTION_WORTH_STEPS = 100  # of which it takes some 25, however long they are


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
        BudgetError: when the budget ends before the baseline is measured.
        UsageError: when a knob that the user named cannot act here.
    """
    baseline = _from_record(session)
    if baseline is not None:
        session.divide()
        return baseline
    if session.budget.total_s < LEAST_BUDGET_S:
        raise BudgetError(
            f"A budget of {session.budget.total_s:g} s is too short: a program takes about "
            f"{LEAST_BUDGET_S:.0f} s to start, and searches take minutes. Try --budget 3m."
        )
    return _measure(session)


def _from_record(session: Session) -> Baseline | None:
    study = session.study
    facts, records = study.facts, study.records
    if facts is None:
        return None
    space = study.head.space.resolve(study.head.hardware, facts.profile)
    setting = _setting(space, facts.profile, study.head)
    setting = replace(setting, sums=gradients_sum(records))
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
    began = monotonic()
    ready = objective.observe(session.until_over)
    if isinstance(ready, Ending):
        raise _failure(session, ready)
    space = head.space.resolve(head.hardware, ready.profile)
    setting = _setting(space, ready.profile, head)
    objective.set_up(space, setting)
    trial = study.ask_for(space.baseline, space)
    record = objective.baseline(session.until_over)
    study.tell(trial, record)
    if record.ending is not None:
        took_s = monotonic() - began
        raise _failure(session, examined(session.rigs, record.ending, took_s, session.until_over))
    assert record.measurement is not None, "a trial without ending has a measurement"
    session.console.trial(0, record, space)
    facts = BaselineFacts(ready.profile, ready.startup_s, record.measurement.step_s)
    study.facts = facts  # from here on the session knows how long a confirmation takes
    session.divide()
    worth_s = max(DISSECTION_WORTH_S, DISSECTION_WORTH_STEPS * facts.step_s)
    if session.budget.left_s - session.reserve_s > worth_s:
        study.facts = facts = replace(facts, anatomy=objective.dissect(session.until_confirmation))
    return Baseline(ready.profile, record.measurement, facts.anatomy, space, setting)


def _failure(session: Session, ending: Ending) -> AutotuneError:
    """Return the error for a baseline that was not measured."""
    program = session.study.head.program
    if ending.outcome is Outcome.OUT_OF_TIME and ending.cause is not Cause.INPUT:
        log = session.rigs.directory / "rigs" / f"{session.rigs.started:03d}" / "log.txt"
        return unmeasured(program, session.budget.total_s, session.startup, log)
    return program_error(program, ending)
