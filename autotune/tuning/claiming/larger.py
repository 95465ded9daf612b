"""The larger batch: the fastest config with other samples in a step, where these may not win.

It is often the largest gain, so it is searched and told in any case. After the claim of what is
recommended, it is claimed by processes of its own, and what it learns is checked, if the time that
is left holds both. It does not take turns in the processes of the other claim: with three configs
to share their time, the first claim had a third of the rounds, in scripted searches of 5 min.

Machines that share a search announce one config, and this is another: each claims its own, and
their processes are not pooled.
"""

from __future__ import annotations

from dataclasses import replace

from autotune.measurement.claim import least_processes
from autotune.program.may_change import MayChange
from autotune.tuning.checking.learning_check import learns_enough, to_check_s
from autotune.tuning.checking.rehearse import rehearse_larger
from autotune.tuning.choosing.ranking import deferred_batch
from autotune.tuning.claiming.claim import ClaimResult, match_of, prove_in_time
from autotune.tuning.proof import Failure, fresh_of, read
from autotune.tuning.session import Baseline, Session


def with_larger(session: Session, baseline: Baseline, claimed: ClaimResult) -> ClaimResult:
    """Claim the larger batch, and check what it learns.

    Nothing is begun unless the time left holds all of it, and the first Ctrl-C ends it. Return the
    claim of what is recommended: that of the larger batch, where the user lets it win.
    """
    study, space = session.study, baseline.space
    record = deferred_batch(study, space, claimed.best or space.baseline)
    if record is None or session.stop.requests:
        return claimed
    match = replace(match_of(session, baseline, record), should_stop=session.until_over)
    checking_s = to_check_s(session, baseline, record)
    missing = least_processes(apart=match.is_apart) - fresh_of(study.claim_of(record.config))
    claiming_s = 0.0
    if missing > 0:
        claiming_s = session.plan.claim_s(is_apart=match.is_apart, processes=missing)
    if session.budget.left_s < claiming_s + checking_s:
        return claimed
    if missing > 0:
        outcome = prove_in_time(session, match, record, checking_s)
        if isinstance(outcome, Failure) and outcome.is_of_winner:  # nobody should hear of it
            study.tell(replace(record, measurement=None, ending=outcome.ending), space)
    found = read(study.claim_of(record.config), match.tau)
    if found is None or not found.is_faster or found.speedup.estimate <= claimed.speedup:
        return claimed
    if not session.stop.requests and not learns_enough(session, space, record.config):
        rehearse_larger(session, baseline, record)
    may_win = space.may_change.allows(MayChange.BATCH)
    is_sound = learns_enough(session, space, record.config)
    return ClaimResult(record, found) if may_win and is_sound else claimed
