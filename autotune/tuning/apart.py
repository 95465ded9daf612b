"""Apart: what needs a fresh process, tried one value at a time after the race.

Such a process differs from that of the program as written by several percent, whatever its config.
So such a config counts for something only where it is faster by far, and its claim takes pairs of
processes: there is time for it in longer searches alone.
"""

from __future__ import annotations

import math

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.claim import APART_TAU
from autotune.measurement.interval import Interval, LogRatio
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import Ending
from autotune.measurement.turn import Played
from autotune.program.config import Config
from autotune.results.blame import is_of_device, judged
from autotune.results.record import TrialRecord
from autotune.tuning.budget import Until
from autotune.tuning.choosing.diagnosis import Diagnosis
from autotune.tuning.choosing.proposals import Proposals
from autotune.tuning.live_rig import over_limit
from autotune.tuning.race import tell, work_factor
from autotune.tuning.session import Baseline, Session


def try_apart(session: Session, baseline: Baseline, diagnosis: Diagnosis) -> None:
    """Try what needs a fresh process, one value after the other, as long as its claim would fit."""
    space = baseline.space
    if not space.restart & space.domains.keys():
        return
    proposals = Proposals(session.study, space, diagnosis)
    for proposal in proposals.restarted(session.may_restart):
        session.hear()
        if session.accepted(space) is not None:
            return
        arm = _restart_part(space, proposal.config)
        if not session.sharing.may_try(arm):
            continue
        session.events.on_trial_start(proposal.config, proposal.why, space)
        began_s = session.rigs.clock()
        found = measured_alone(session, baseline, proposal.config, session.until_confirmation)
        measured = found if isinstance(found, Measurement) else None
        record = TrialRecord(
            proposal.config,
            proposal.why,
            measured,
            found if isinstance(found, Ending) else None,
            None
            if measured is None
            else speedup_apart(session, baseline, proposal.config, measured),
            session.live.number,
            session.rigs.clock() - began_s,
        )
        record = judged([*session.study.records, record], space.baseline)[-1]
        tell(session, space, proposal, record)
        session.sharing.tried(record, arm)


def _restart_part(space: ResolvedSpace, config: Config) -> Config:
    # What is tried, whatever the best config is that it is tried on top of
    values = {knob: value for knob, value in config.items() if knob in space.restart}
    return space.start.replace(**values)


def measured_alone(
    session: Session, baseline: Baseline, config: Config, until: Until
) -> Measurement | Ending:
    """Measure a config that is alone in a process, or return why that failed."""
    stay = session.live.alone(config, until)
    if isinstance(stay, Ending) and is_of_device(stay):
        stay = session.live.alone(config, until)
    if isinstance(stay, Ending):
        session.rigs.learn(stay, as_written=False)
        return stay
    measured = Measurement.of(stay.turns, stay.taken)
    own = baseline.measurement
    return over_limit(session.rigs, session.study.goal, measured, own) or measured


def speedup_apart(
    session: Session, baseline: Baseline, config: Config, measured: Measurement
) -> Interval:
    """Return how much faster a config is that was measured alone, as far as that shows it."""
    sides = []
    for one in (baseline.measurement, measured):
        step = Played(one.step_s, one.throughput.estimate * one.step_s)
        worth = session.study.goal.worth(step, one) or step
        sides.append(math.log(worth.work / worth.cost))
    factor = work_factor(session, baseline, config, measured)
    return LogRatio(sides[1] - sides[0] + math.log(factor), APART_TAU).interval
