"""Agreeing: machines that share a search claim one config together.

The first one whose race is over announces its best config. The others end their race when they read
of it; then all of them rehearse it and claim it. A machine on which it fails, or trains something
else, refuses it, and another one is announced.
"""

from __future__ import annotations

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.learning.training_trace import Sameness
from autotune.program.config import Config
from autotune.program.may_change import MayChange
from autotune.results.record import TrialRecord, latest
from autotune.results.rehearsals import trained
from autotune.sharing.membership import WAITS
from autotune.tuning.checking.learning_check import learns_enough
from autotune.tuning.session import Baseline, Session

ANNOUNCED = "announced by another machine, to be claimed together"
PAUSE_S = 1.0  # between two looks at what other machines have measured


def agreed(session: Session, baseline: Baseline, own: TrialRecord | None) -> TrialRecord | None:
    """Return what to claim: the config that is announced, or this machine's own best one.

    Its own is announced as soon as it may be claimed. One that is announced and fails here, or
    trains something else, is refused.
    """
    sharing = session.sharing
    if (announced := session.accepted(baseline.space)) is not None:
        return _record_of(session, announced.config)
    if own is None or session.stop.requests or not may_be_claimed(session, baseline, own.config):
        return own
    in_force = sharing.announce(own.config)
    is_own = in_force is None or in_force.config == own.config
    return own if is_own else agreed(session, baseline, own)


def may_be_claimed(session: Session, baseline: Baseline, config: Config) -> bool:
    """Return whether the training of a config may be recommended, as far as it is known."""
    if not learns_enough(session, baseline.space, config):
        return False
    is_free = baseline.space.may_change is not MayChange.NOTHING
    return is_free or _is_equal(session, baseline.space, config)


def _is_equal(session: Session, space: ResolvedSpace, config: Config) -> bool:
    # Whether a config was seen to train what the program does, bit for bit
    canary, record = session.study.canary, trained(session.study.rehearsals, config)
    if canary is not None and canary.clears(config, space.baseline):
        found = canary.training
    else:
        found = None if record is None else record.training
    return found is not None and found.sameness is Sameness.BITS


def await_announcement(session: Session) -> None:
    """Wait, where nothing looks faster here, for what others announce while it can be claimed."""
    sharing, claim_s = session.sharing, session.plan.claim_s(is_apart=False)
    if sharing.awaits_announcement():
        sharing.begin(WAITS)
        session.events.note("Waiting for what other machines find.")
    while sharing.awaits_announcement() and session.budget.left_s > claim_s:
        if session.stop.requests:
            break
        sharing.pause(PAUSE_S)


def _record_of(session: Session, config: Config) -> TrialRecord:
    """Return the record of an announced config, which perhaps only other machines have played."""
    study = session.study
    for record in latest(study.known_records):
        if record.config == config and record.ending is None:
            return record
    is_known = study.speeds is not None and config in study.speeds
    speedup = study.speeds.of(config).interval if study.speeds and is_known else None
    return TrialRecord(config, ANNOUNCED, None, None, speedup, None, 0.0, is_elsewhere=True)
