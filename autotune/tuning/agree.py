"""Agreeing: machines that share a search claim one config together.

The first that is ready announces its best config. The others end their race when they read of it,
measure it once where they have not, rehearse it, and claim it. A machine on which it fails, or
trains something else, refuses it; then another one may be announced.
"""

from __future__ import annotations

from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import ENDED_BY_US, Ending, Outcome
from autotune.program.config import Config
from autotune.results.blame import judged
from autotune.results.record import TrialRecord
from autotune.results.rehearsals import blames
from autotune.tuning.apart import measured_alone, speedup_apart
from autotune.tuning.choosing.chooser import Proposal
from autotune.tuning.claim import claimable
from autotune.tuning.race import tell
from autotune.tuning.session import Baseline, Session

ANNOUNCED = "announced by another machine, to be claimed together"


def agree(session: Session, baseline: Baseline) -> bool:
    """Announce the best config, unless another machine has announced one.

    Returns:
        Whether to go on with another config: what was announced elsewhere is to be measured and
        rehearsed here, or was refused here.
    """
    sharing = session.sharing
    if sharing.is_alone or session.stop.requests:
        return False
    if (announced := sharing.announced()) is not None:
        fault = _fault_of(session, announced.config)
        if not fault:
            return False
        session.events.warn(f"Refused here, what other machines claim: {fault}")
        sharing.refuse(fault)
        return sharing.announced() != announced
    own = next(iter(claimable(session, baseline)), None)
    announced = None if own is None else sharing.announce(own.config)
    return own is not None and announced is not None and announced.config != own.config


def take_up(session: Session, baseline: Baseline) -> None:
    """Measure the announced config, if this machine has not."""
    announced, study, space = session.sharing.announced(), session.study, baseline.space
    if announced is None or any(r.config == announced.config for r in study.records):
        return
    config, proposal = announced.config, Proposal(announced.config, ANNOUNCED)
    session.events.on_trial_start(config, ANNOUNCED, space)
    began_s = session.rigs.clock()
    found = measured_alone(session, baseline, config, session.until_over)
    if isinstance(found, Ending) and found.outcome in {*ENDED_BY_US, Outcome.RAN_OUT}:
        return
    measured = found if isinstance(found, Measurement) else None
    record = TrialRecord(
        config,
        ANNOUNCED,
        measured,
        found if isinstance(found, Ending) else None,
        None if measured is None else speedup_apart(session, baseline, config, measured),
        session.live.number,
        session.rigs.clock() - began_s,
    )
    tell(session, space, proposal, judged([*study.records, record], space.baseline)[-1])


def _fault_of(session: Session, config: Config) -> str:
    """Return why a config may not be recommended on this machine; empty if it may."""
    for record in session.study.records:
        if record.config == config and record.ending is not None:
            return record.ending.reason
    blamed = [r for r in session.study.rehearsals if r.config == config and r.is_blamed]
    if blamed:
        return blames(blamed)[0]
    is_guilty = any(changes.items() <= config.items() for changes in session.study.guilty)
    return "it trains something else here" if is_guilty else ""
