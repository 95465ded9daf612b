"""Rehearsal: run the best config through what follows the training loop.

Trials see only a training loop that never ends. A rehearsal is a fresh process that runs the
program under the config with epochs of a few batches. So its evaluation, its checkpoints, its
schedules and its second epoch run as they will later, but behind the fence.

A config is blamed only for what fails under it and not in the program as written. One that does not
fail is compared with the program as written by what it trains (``self_check``), in the same runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum

from autotune.measurement.learning.training_trace import Agreement, Sameness
from autotune.measurement.outcome import Outcome
from autotune.program.config import Config, KnobValue
from autotune.program.rehearsal import (
    Rehearsal,
    RehearsalPlan,
    RehearsalRecord,
    blames,
    note,
    survives,
    warning,
)
from autotune.results.record import TrialRecord
from autotune.tuning.baseline import Baseline
from autotune.tuning.checking.growth import may_be_checked, samples_ratio, with_learning
from autotune.tuning.checking.preferred import confirming_s, first_in_time
from autotune.tuning.checking.self_check import Known, SelfCheck, one_fewer
from autotune.tuning.checking.short_runs import ShortRuns
from autotune.tuning.choosing.ranking import promising
from autotune.tuning.session import Session
from autotune.tuning.storage.study import Study

MAX_CANDIDATES = 4
# A rehearsal that time ended is repeated if there is this many times the time that it took.
WORTH_MORE = 1.5
UNEVEN = "the program fails where its runs are made comparable"
# These knobs change what the program's code meets outside of its training loop, such as dtypes and
# wrapped models, so they are suspected first.
SUSPECTS = ("precision", "memory_format", "compile", "batch_size", "workers")


class Rehearsed(StrEnum):
    """What comes after a rehearsal."""

    GO_ON = "go on"
    """There is a candidate to confirm, or none is worth another look."""
    NOTHING_LEFT = "nothing left"
    """All that looked faster fails outside of the training loop, and there is time to search on."""


def rehearse_best(session: Session, baseline: Baseline) -> Rehearsed:
    """Rehearse the best config; if the config is to blame for a failure, try the next best.

    Findings are recorded, so a resumed search does not repeat them. Nothing is rehearsed if that
    would take time that the confirmation needs.
    """
    session.live.close()
    study = session.study
    is_blamed = False
    for _ in range(MAX_CANDIDATES):
        able = promising(study, baseline.space)
        fit = [r for r in able if may_be_checked(session, baseline.space, r.config)]
        candidate = first_in_time(session, baseline, fit)
        if candidate is not None and _is_cleared(session, baseline, candidate.config):
            return Rehearsed.GO_ON
        if candidate is None:
            session.has_candidate = False
            can_go_on = is_blamed and session.until_last_trial() is None
            return Rehearsed.NOTHING_LEFT if can_go_on else Rehearsed.GO_ON
        most_s = session.time_to_rehearse_s(kept_s=confirming_s(session, baseline, candidate))
        if not most_s or _is_known(study, candidate.config, most_s):
            return Rehearsed.GO_ON
        session.events.on_phase("rehearsing")
        session.events.on_rehearsal(candidate.config, baseline.space)
        began_s = session.budget.spent_s
        record = _examined(session, baseline, candidate, most_s)
        if _was_stopped(record.own):
            return Rehearsed.GO_ON
        study.add_rehearsal(replace(record, cost_s=session.budget.spent_s - began_s))
        study.spent_s = session.budget.spent_s
        _tell(session, record)
        if not record.is_blamed:
            return Rehearsed.GO_ON
        is_blamed = True
    return Rehearsed.GO_ON


def _is_cleared(session: Session, baseline: Baseline, config: Config) -> bool:
    """Return whether a config was compared before the search; note it as rehearsed then."""
    study = session.study
    canary = study.canary
    if canary is None or canary.own is None or not canary.clears(config, baseline.space.baseline):
        return False
    if not any(record.config == config for record in study.rehearsals):
        record = RehearsalRecord(config, canary.own, training=canary.training)
        study.add_rehearsal(record)
        _tell(session, record)
    return True


def _is_known(study: Study, config: Config, most_s: float) -> bool:
    """Return whether another rehearsal of a config would tell nothing new.

    That is so if one had a clear finding, or if an earlier one was cut off and there is not
    ``WORTH_MORE`` times its duration left.
    """
    earlier = [r for r in study.rehearsals if r.config == config and not study.awaits_check(r)]
    return any(r.is_settled or most_s < WORTH_MORE * r.cost_s for r in earlier)


def _examined(
    session: Session, baseline: Baseline, candidate: TrialRecord, most_s: float
) -> RehearsalRecord:
    """Rehearse a candidate, and compare its training or find out why it fails."""
    config = candidate.config
    runs = ShortRuns(session, baseline, confirming_s(session, baseline, candidate))
    step_s = baseline.measurement.step_s
    check = SelfCheck(runs, baseline.space, step_s, Known.of(session, baseline))
    plan = check.plan_to_rehearse(config, most_s)
    own = runs.run(config, replace(plan, most_s=most_s))
    if not own.has_failed:
        record = _checked(check, config, own, has_trace=plan.traces is not None)
        if not record.is_blamed and not _was_stopped(own):
            speedup = samples_ratio(candidate, baseline)
            kept_s = confirming_s(session, baseline, candidate)
            record = with_learning(session, baseline, record, speedup, kept_s)
        accepts = session.study.head.options.accepts_learning_change
        return replace(record, guilty={}) if accepts else record
    record = _failed(session, baseline, candidate, own, plan)
    most_s = session.time_to_rehearse_s(kept_s=0.0)
    if not plan.traces or not most_s or record.baseline is None or record.is_blamed:
        return record
    # Both fail, perhaps because of the conditions for comparing
    own = runs.run(config, RehearsalPlan(most_s=most_s))
    if own.has_failed:
        return _failed(session, baseline, candidate, own, RehearsalPlan())
    return RehearsalRecord(config, own, training=Agreement(Sameness.UNKNOWN, why=UNEVEN))


def _failed(
    session: Session,
    baseline: Baseline,
    candidate: TrialRecord,
    own: Rehearsal,
    plan: RehearsalPlan,
) -> RehearsalRecord:
    """Return the record of a config that failed, after rehearsing the program as written.

    The baseline is rehearsed only now, because most of the time it would prove nothing. It may use
    the time kept for the confirmation, because its result decides whether this candidate is
    confirmed. Without time for it nobody is blamed.
    """
    most_s = session.time_to_rehearse_s(kept_s=0.0)
    if not most_s:
        return RehearsalRecord(candidate.config, own)
    runs = ShortRuns(session, baseline, kept_s=0.0)
    written = runs.run(baseline.space.baseline, replace(plan, most_s=most_s))
    if not survives(written, own):
        return RehearsalRecord(candidate.config, own, written)
    guilty = _guilty(session, baseline, candidate, plan)
    return RehearsalRecord(candidate.config, own, written, guilty)


def _checked(
    check: SelfCheck, config: Config, own: Rehearsal, *, has_trace: bool
) -> RehearsalRecord:
    """Return the record of a config that did not fail, with how its training compares.

    Args:
        check: Compares it.
        config: The config.
        own: Its rehearsal.
        has_trace: Whether the rehearsal was to trace the training.
    """
    if own.seen is None or _was_stopped(own):
        return RehearsalRecord(config, own)
    trace, own = own.seen.trace, replace(own, seen=replace(own.seen, trace=None))
    if has_trace and trace is None:
        return RehearsalRecord(config, own)
    found = check.check(config, trace)
    return RehearsalRecord(
        config,
        own,
        guilty=found.guilty,
        training=found.training,
        by_design=found.by_design,
        learning=found.learning,
        untold=found.untold,
    )


def _guilty(
    session: Session, baseline: Baseline, candidate: TrialRecord, plan: RehearsalPlan
) -> dict[str, KnobValue]:
    """Return the one change without which the config passes; all changes if none is found.

    Each suspected change is taken back in turn, as long as the confirmation keeps its time.
    """
    config = candidate.config
    changes = config.changes_from(baseline.space.baseline)
    kept_s = confirming_s(session, baseline, candidate)
    runs = ShortRuns(session, baseline, kept_s)
    fewer = dict(one_fewer(baseline.space, config))
    for knob, without in ((knob, fewer[knob]) for knob in _suspects(list(fewer))):
        most_s = session.time_to_rehearse_s(kept_s=kept_s)
        if not most_s:
            break
        if runs.run(without, replace(plan, most_s=most_s)).has_passed:
            return {knob: changes[knob]}
    return changes


def _suspects(changes: Sequence[str]) -> Iterator[str]:
    yield from (knob for knob in SUSPECTS if knob in changes)
    yield from (knob for knob in changes if knob not in SUSPECTS)


def _was_stopped(rehearsal: Rehearsal) -> bool:
    return rehearsal.ending is not None and rehearsal.ending.outcome is Outcome.INTERRUPTED


def _tell(session: Session, record: RehearsalRecord) -> None:
    if record.is_blamed:
        session.events.warn(blames([record])[0])
    elif unseen := warning([record], record.config):
        session.events.warn(unseen)
    else:
        session.events.note(note([record], record.config))
        if record.training_note:
            session.events.note(record.training_note)
