"""The larger batch: the fastest config with other samples in a step, where these may not win.

It is often the largest gain, so it is searched and told in any case. In the processes of the claim
it takes turns along with the others. Whether it learns as much is checked after the claim, in the
time that this has left, because the claim of what is recommended comes first.
"""

from __future__ import annotations

from dataclasses import replace

from autotune.measurement.claim import least_processes
from autotune.program.lr import LrRule
from autotune.program.may_change import MayChange
from autotune.results.result import LargerBatch
from autotune.tuning.checking.learning_check import (
    check_s,
    learns_enough,
    samples_ratio,
    to_check_s,
)
from autotune.tuning.checking.rehearse import rehearse_larger
from autotune.tuning.choosing.ranking import deferred_batch, larger_batch
from autotune.tuning.claim import ClaimResult, Failure, fresh_of, match_of, prove_in_time, read
from autotune.tuning.session import Baseline, Session


def with_larger(session: Session, baseline: Baseline, claimed: ClaimResult) -> ClaimResult:
    """Claim the larger batch, unless it has played along, and check what it learns.

    Nothing is begun unless the time left holds all of it. Return the claim of what is recommended:
    that of the larger batch, where the user lets it win.
    """
    study, space = session.study, baseline.space
    record = deferred_batch(study, space, claimed.best or space.baseline)
    if record is None or session.stop.requests:
        return claimed
    match, checking_s = match_of(session, baseline, record), to_check_s(session, baseline, record)
    least = least_processes(apart=match.is_apart)
    missing = max(0, least - fresh_of(study.claim_of(record.config)))
    claiming_s = session.plan.claim_s(is_apart=match.is_apart) * missing / least
    if session.budget.left_s < claiming_s + checking_s:
        return claimed
    if missing:
        outcome = prove_in_time(session, match, record, checking_s)
        if isinstance(outcome, Failure) and outcome.is_of_winner:  # nobody should hear of it
            study.tell(replace(record, measurement=None, ending=outcome.ending), space)
    found = read(study.claim_of(record.config), match.tau)
    if found is None or not found.is_faster or found.speedup.estimate <= claimed.speedup:
        return claimed
    if not learns_enough(session, space, record.config):
        rehearse_larger(session, baseline, record)
    may_win = space.may_change.allows(MayChange.BATCH)
    is_sound = learns_enough(session, space, record.config)
    return ClaimResult(record, found) if may_win and is_sound else claimed


def larger_found(session: Session, baseline: Baseline, claimed: ClaimResult) -> LargerBatch | None:
    """Return what is known of the larger batch; None if it is not worth telling."""
    study, space = session.study, baseline.space
    record = larger_batch(study, space, claimed.best or space.baseline)
    if record is None or record.speedup is None:
        return None
    processes = study.claim_of(record.config)
    found = read(processes, match_of(session, baseline, record).tau)
    speedup = record.speedup
    if found is not None and found.is_enough:
        speedup = found.speedup
        if speedup.estimate <= claimed.speedup:
            return None
    checks = [r for r in study.rehearsals if r.config == record.config and r.seeds]
    return LargerBatch(
        record.config,
        speedup,
        check_s(session, baseline, record.config, samples_ratio(record, baseline)),
        processes,
        checks[-1].lr_rule if checks else LrRule.AUTO,
        is_confirmed=found is not None
        and found.is_faster
        and learns_enough(session, space, record.config),
    )
