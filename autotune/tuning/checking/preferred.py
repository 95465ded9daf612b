"""Which promising config is taken: the fastest, or one that is little slower and can be checked.

A config that needs a fresh process, to compile for example, takes so long to confirm that no time
may be left to see what it trains. ``rehearse`` and ``confirm`` take the same one.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.program.config import Config
from autotune.results.record import TrialRecord
from autotune.tuning.baseline import Baseline
from autotune.tuning.session import Session
from autotune.tuning.storage.study import Study

# How many times the speed of the next best is worth a config whose training nobody has checked
WORTH_UNCHECKED = 1.5


def came_through(study: Study, config: Config) -> bool:
    """Return whether a rehearsal has seen a config train on after an epoch, without a fault."""
    return any(
        r.config == config and r.own.has_passed and not r.is_blamed for r in study.rehearsals
    )


def first_in_time(
    session: Session, baseline: Baseline, able: Sequence[TrialRecord]
) -> TrialRecord | None:
    """Return the config to rehearse; None if there is none.

    Args:
        session: Gives the time.
        baseline: The program as written.
        able: Configs that look faster, best first.
    """
    least_s = session.least_rehearsal_s + session.check_s

    def may_be_first(record: TrialRecord) -> bool:
        if came_through(session.study, record.config):
            return True
        left_s = session.budget.left_s - confirming_s(session, baseline, record)
        return left_s >= least_s or not _is_apart(baseline, record)

    close = (record for record in able if _is_close(record, able[0]))
    return next(filter(may_be_first, close), next(iter(able), None))


def checked_first(
    session: Session, baseline: Baseline, able: Sequence[TrialRecord]
) -> list[TrialRecord]:
    """Return configs in the order in which they are confirmed.

    That is best first. Where nobody knows what the best one trains, and it needs a fresh process,
    those that are little slower and came through a rehearsal come before it.

    Args:
        session: Gives the rehearsals.
        baseline: The program as written.
        able: Configs that look faster, best first.
    """
    if not able or not _is_apart(baseline, able[0]):
        return [*able]
    study, best = session.study, able[0]
    if came_through(study, best.config):
        return [*able]

    def comes_later(record: TrialRecord) -> bool:
        return not (_is_close(record, best) and came_through(study, record.config))

    return sorted(able, key=comes_later)


def confirming_s(session: Session, baseline: Baseline, candidate: TrialRecord) -> float:
    """Return the seconds that the shortest confirmation of a candidate takes."""
    is_apart = _is_apart(baseline, candidate)
    return session.least_claim_s(is_apart=is_apart)


def _is_apart(baseline: Baseline, record: TrialRecord) -> bool:
    return baseline.space.needs_restart(baseline.space.baseline, record.config)


def _is_close(record: TrialRecord, best: TrialRecord) -> bool:
    """Return whether a config is so little slower that it may be taken because it was checked."""
    assert record.speedup is not None, "it looks faster"
    assert best.speedup is not None, "it looks faster"
    return record.speedup.estimate * WORTH_UNCHECKED > best.speedup.estimate
