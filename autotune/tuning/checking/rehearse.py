"""Rehearsal: run the best config through what follows the training loop.

Trials see only a training loop that never ends. A rehearsal is a fresh process that runs the
program under the config with epochs of a few batches. So its evaluation, its checkpoints, its
schedules and its second epoch run as they will later, but behind the fence.

A config is blamed only for what fails under it and not in the program as written. One that does not
fail is compared with the program as written by what it trains (``self_check``), in the same runs.
"""

from __future__ import annotations

from dataclasses import replace

from autotune.measurement.learning.training_trace import Agreement, Sameness
from autotune.measurement.outcome import Outcome
from autotune.program.config import Config
from autotune.program.may_change import MayChange
from autotune.program.rehearsal import Rehearsal, RehearsalPlan
from autotune.results.record import TrialRecord
from autotune.results.rehearsals import RehearsalRecord, blames, note, survives, warning
from autotune.tuning.agree import agreed, await_announcement
from autotune.tuning.checking.learning_check import learns_enough, samples_ratio, with_learning
from autotune.tuning.checking.self_check import SelfCheck, without_one
from autotune.tuning.checking.short_runs import ShortRuns
from autotune.tuning.choosing.ranking import promising
from autotune.tuning.events import Phase
from autotune.tuning.session import Baseline, Session
from autotune.tuning.storage.study import MOST_CHECKS, Study

MAX_CANDIDATES = 4
# A rehearsal that time ended is repeated if there is this many times the time that it took.
WORTH_MORE = 1.5
UNEVEN = "the program fails where its runs are made comparable"


def rehearse_best(session: Session, baseline: Baseline) -> bool:
    """Rehearse the best config; if the config is to blame for a failure, try the next best.

    Findings are recorded, so a resumed search does not repeat them. Nothing is rehearsed if that
    would take time that the confirmation needs.

    Returns:
        Whether to search on: all that looked faster fails outside of the training loop, and there
        is time for other configs.
    """
    session.live.close()
    study = session.study
    is_blamed = False
    for _ in range(MAX_CANDIDATES):
        may_check, space = study.learning_checks < MOST_CHECKS, baseline.space
        able = promising(study, space)
        able = [r for r in able if may_check or learns_enough(session, space, r.config)]
        if not able and not is_blamed:
            await_announcement(session)
        best = agreed(session, baseline, next(iter(able), None))
        if best is None:
            session.has_candidate = False
            return is_blamed and session.until_last_trial() is None
        is_apart = space.needs_restart(space.baseline, best.config)
        kept_s = session.plan.claim_s(is_apart=is_apart)
        most_s = session.time_to_rehearse_s(kept_s=kept_s)
        if _is_cleared(session, baseline, best.config) or not most_s:
            return False
        if _is_known(study, best.config, most_s):
            return False
        record = _rehearsed(_Rehearsing(session, baseline, best, kept_s), most_s)
        announced = session.sharing.announced()
        is_agreed = announced is None or announced.config == best.config
        if record is None or (is_agreed and not record.is_blamed):
            return False
        is_blamed = is_blamed or record.is_blamed
    return False


def rehearse_larger(session: Session, baseline: Baseline, larger: TrialRecord) -> None:
    """Rehearse a config with a larger batch and check what it learns, in all the time left."""
    if most_s := session.time_to_rehearse_s(kept_s=0.0):
        _rehearsed(_Rehearsing(session, baseline, larger, 0.0), most_s)


def _is_cleared(session: Session, baseline: Baseline, config: Config) -> bool:
    study, canary = session.study, session.study.canary
    if canary is None or canary.own is None or not canary.clears(config, baseline.space.baseline):
        return False
    if not any(record.config == config for record in study.rehearsals):
        record = RehearsalRecord(config, canary.own, training=canary.training)
        study.rehearsals = (*study.rehearsals, record)
        _tell(session, record)
    return True


def _is_known(study: Study, config: Config, most_s: float) -> bool:
    # One had a clear finding, or was cut off and not ``WORTH_MORE`` times its duration is left
    earlier = [r for r in study.rehearsals if r.config == config and not study.awaits_check(r)]
    return any(r.is_settled or most_s < WORTH_MORE * r.cost_s for r in earlier)


class _Rehearsing:
    def __init__(
        self, session: Session, baseline: Baseline, candidate: TrialRecord, kept_s: float
    ) -> None:
        self.session, self._baseline, self._candidate = session, baseline, candidate
        self.config, self.space, self._kept_s = candidate.config, baseline.space, kept_s
        self._runs = ShortRuns.of(session, baseline, kept_s)

    def record(self, most_s: float) -> RehearsalRecord:
        session, config = self.session, self.config
        check = SelfCheck.of(session, self._baseline, self._runs)
        plan = check.plan_to_rehearse(config, most_s)
        own = self._runs.run(config, replace(plan, most_s=most_s))
        if not own.has_failed:
            record = self._checked(check, own, has_trace=plan.traces is not None)
            if not record.is_blamed and not _was_stopped(own):
                speedup = samples_ratio(self._candidate, self._baseline)
                record = with_learning(session, self._baseline, record, speedup, self._kept_s)
            is_free = self.space.may_change is MayChange.ANY
            return replace(record, guilty={}) if is_free else record
        record = self._failed(own, plan)
        most_s = session.time_to_rehearse_s(kept_s=0.0)
        if not plan.traces or not most_s or record.baseline is None or record.is_blamed:
            return record
        # Both fail, perhaps because of the conditions for comparing
        own = self._runs.run(config, RehearsalPlan(most_s=most_s))
        if own.has_failed:
            return self._failed(own, RehearsalPlan())
        return RehearsalRecord(config, own, training=Agreement(Sameness.UNKNOWN, why=UNEVEN))

    def _checked(self, check: SelfCheck, own: Rehearsal, *, has_trace: bool) -> RehearsalRecord:
        config = self.config
        if own.seen is None or _was_stopped(own):
            return RehearsalRecord(config, own)
        trace, own = own.seen.trace, replace(own, seen=replace(own.seen, trace=None))
        if has_trace and trace is None:
            return RehearsalRecord(config, own)
        return check.check(config, own, trace)

    def _failed(self, own: Rehearsal, plan: RehearsalPlan) -> RehearsalRecord:
        # The baseline is rehearsed only now, because most of the time it would prove nothing. It
        # may use the time kept for the confirmation, because its result decides whether this
        # candidate is confirmed. Without time for it nobody is blamed.
        most_s = self.session.time_to_rehearse_s(kept_s=0.0)
        if not most_s:
            return RehearsalRecord(self.config, own)
        written = self._runs.run(self.space.baseline, replace(plan, most_s=most_s))
        if not survives(written, own):
            return RehearsalRecord(self.config, own, written)

        def passes(config: Config) -> bool:
            most_s = self.session.time_to_rehearse_s(kept_s=self._kept_s)
            return bool(most_s) and self._runs.run(config, replace(plan, most_s=most_s)).has_passed

        guilty = without_one(self.space, self.config, passes)
        return RehearsalRecord(self.config, own, written, guilty)


def _rehearsed(rehearsing: _Rehearsing, most_s: float) -> RehearsalRecord | None:
    # Rehearse and record what was found; None if the user stopped it
    session = rehearsing.session
    study, budget = session.study, session.budget
    session.begin(Phase.CONFIRM)
    session.events.on_rehearsal(rehearsing.config, rehearsing.space)
    began_s = budget.spent_s
    record = rehearsing.record(most_s)
    if _was_stopped(record.own):
        return None
    record = replace(record, cost_s=budget.spent_s - began_s)
    study.rehearsals = (*study.rehearsals, record)
    study.spent_s = budget.spent_s
    _tell(session, record)
    return record


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
