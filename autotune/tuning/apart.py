"""Apart: what needs a fresh process, tried one value at a time after the race.

Such a process differs from that of the program as written by several percent, whatever its config.
So such a config counts for something only where it is faster by far, and its claim takes pairs of
processes: there is time for it in longer searches alone.
"""

from __future__ import annotations

import math
from dataclasses import replace

from autotune.measurement.claim import APART_TAU
from autotune.measurement.interval import Interval, LogRatio
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import Ending
from autotune.measurement.turn import Played
from autotune.program.config import Config
from autotune.results.blame import judged
from autotune.results.record import TrialRecord
from autotune.tuning.baseline import Baseline
from autotune.tuning.choosing.diagnosis import Diagnosis
from autotune.tuning.choosing.proposals import Proposals
from autotune.tuning.race import tell, work_factor
from autotune.tuning.session import Session


def try_apart(session: Session, baseline: Baseline, diagnosis: Diagnosis) -> None:
    """Try what needs a fresh process, if there is time for it and for its claim."""
    Apart(session, baseline, Proposals(session.study, baseline.space, diagnosis)).run()


class Apart:
    """Tries what needs a fresh process, on top of the best config of the race.

    Args:
        session: The search.
        baseline: The program as written.
        proposals: Says what is tried.
    """

    def __init__(self, session: Session, baseline: Baseline, proposals: Proposals) -> None:
        self._session, self._baseline, self._proposals = session, baseline, proposals

    def run(self) -> None:
        """Try one value after the other, as long as its claim would fit into the budget."""
        session, space = self._session, self._baseline.space
        if not space.restart & space.domains.keys():
            return
        for proposal in self._proposals.restarted(session.may_restart):
            session.events.on_trial_start(proposal.config, proposal.why, space)
            began_s = session.rigs.clock()
            found = self._measured(proposal.config)
            ending = found if isinstance(found, Ending) else None
            measured = found if isinstance(found, Measurement) else None
            record = TrialRecord(
                proposal.config,
                proposal.why,
                measured,
                ending,
                None if measured is None else self._speedup(proposal.config, measured),
                session.live.number,
                session.rigs.clock() - began_s,
            )
            record = judged([*session.study.records, record], space.baseline)[-1]
            tell(session, space, proposal, record)

    def _measured(self, config: Config) -> Measurement | Ending:
        session = self._session
        live, stop = session.live, session.until_confirmation
        stay = live.alone(config, stop)
        if isinstance(stay, Ending):
            session.rigs.learn(stay, as_written=False)
            return stay
        measured = Measurement.of(stay.turns, stay.taken)
        capacity = session.rigs.hardware.capacity_bytes(on_device=measured.memory.is_on_device)
        excess = session.study.goal.excess(measured.memory, capacity)
        return excess or measured

    def _speedup(self, config: Config, measured: Measurement) -> Interval:
        """Return how much faster the config's process is than that of the program as written."""
        goal, base = self._session.study.goal, self._baseline.measurement
        sides = []
        for one in (base, measured):
            all_in = Played(one.seconds, one.throughput.estimate * one.seconds)
            all_in = replace(all_in, steps=round(one.seconds / one.step_s))
            worth = goal.worth(all_in, one) or all_in
            sides.append(math.log(worth.work / worth.cost))
        factor = work_factor(self._session, self._baseline, config, measured)
        return LogRatio(sides[1] - sides[0] + math.log(factor), APART_TAU).interval
