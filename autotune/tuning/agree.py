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
from autotune.tuning.choosing.diagnosis import Diagnosis
from autotune.tuning.claim import claimable
from autotune.tuning.race import race, tell
from autotune.tuning.session import Baseline, Session

NOBODYS = {*ENDED_BY_US, Outcome.RAN_OUT, Outcome.UNCLEAR}  # endings that say nothing of a config
ANNOUNCED = "announced by another machine, to be claimed together"


def select(session: Session, baseline: Baseline, diagnosis: Diagnosis) -> None:
    """Race configs, until it is clear which one to claim, here or on another machine."""
    race(session, baseline, diagnosis)
    take_up(session, baseline)


class Agreeing:
    """Lets one machine agree with the others on the config that all of them claim."""

    def __init__(self, session: Session, baseline: Baseline) -> None:
        self._session, self._baseline = session, baseline
        self._seen: set[str] = set()  # names of announcements

    def goes_on(self) -> bool:
        """Announce the best config, unless another machine has announced one.

        Returns:
            Whether to go on with another config: what was announced elsewhere is to be measured
            and rehearsed here, or was refused here.
        """
        session, sharing = self._session, self._session.sharing
        if sharing.is_alone or session.stop.requests:
            return False
        if sharing.announced() is None:
            return self._announces()
        return self._refuses() or self._is_new()

    def _announces(self) -> bool:
        own = next(iter(claimable(self._session, self._baseline)), None)
        announced = None if own is None else self._session.sharing.announce(own.config)
        if own is None or announced is None:
            return False
        if announced.config == own.config:  # it was rehearsed before
            self._seen.add(announced.name)
        return self._is_new()

    def _is_new(self) -> bool:
        announced = self._session.sharing.announced()
        if announced is None or announced.name in self._seen:
            return False
        self._seen.add(announced.name)
        return True

    def _refuses(self) -> bool:
        session, announced = self._session, self._session.sharing.announced()
        fault = "" if announced is None else _fault_of(session, announced.config)
        if fault:
            session.events.warn(f"Refused here, what other machines claim: {fault}")
            session.sharing.refuse(fault)
        return bool(fault) and session.sharing.announced() != announced


def take_up(session: Session, baseline: Baseline) -> None:
    """Measure the announced config, if this machine has not."""
    announced, study, space = session.sharing.announced(), session.study, baseline.space
    if announced is None or any(map(_tells, _records_of(session, announced.config))):
        return
    config, proposal = announced.config, Proposal(announced.config, ANNOUNCED)
    session.events.on_trial_start(config, ANNOUNCED, space)
    began_s = session.rigs.clock()
    found = measured_alone(session, baseline, config, session.until_over)
    if isinstance(found, Ending) and found.outcome in NOBODYS:
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
    for record in filter(_tells, _records_of(session, config)):
        if record.ending is not None:
            return record.ending.reason
    blamed = [r for r in session.study.rehearsals if r.config == config and r.is_blamed]
    if blamed:
        return blames(blamed)[0]
    is_guilty = any(changes.items() <= config.items() for changes in session.study.guilty)
    return "it trains something else here" if is_guilty else ""


def _records_of(session: Session, config: Config) -> list[TrialRecord]:
    return [record for record in session.study.records if record.config == config]


def _tells(record: TrialRecord) -> bool:
    return record.measurement is not None or record.outcome not in NOBODYS
