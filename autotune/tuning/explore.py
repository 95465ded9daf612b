"""Exploration: measure one proposed config after another until the confirmation is due.

What is measured here only selects a candidate; claims rest on the confirmation alone.
"""

from __future__ import annotations

import math
from dataclasses import replace

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.goal import Objective
from autotune.results.blame import judged
from autotune.tuning.choosing.diagnosis import Diagnosis
from autotune.tuning.choosing.proposals import Proposals
from autotune.tuning.choosing.ranking import promising, ranked
from autotune.tuning.session import Session

# Share of the best config's throughput; a window that is surely below it is ended early. Of 1,000
# simulated windows for each speed, whose blocks vary by 3 % and correlate by 0.5, it ended none of
# a config as fast as the best, 0.1 % at 0.90 of its speed, 25 % at the limit itself and 99 % at
# 0.80 (tests/inside/test_meter.py). The drift between windows lowers the limit further.
CLEARLY_WORSE = 0.85


def explore(session: Session, space: ResolvedSpace, diagnosis: Diagnosis) -> None:
    """Measure the proposed configs and record each; a failed trial does not end the search.

    It ends when only the time reserved for rehearsal and confirmation is left, when nothing that
    this time allows promises more, or at the first Ctrl-C.
    """
    study, events = session.study, session.events
    events.on_phase("searching")
    proposals = iter(
        Proposals(
            study,
            space,
            diagnosis,
            study.head.options.seed,
            session.may_restart,
            lambda: session.share_left,
        )
    )
    _look_for_candidate(session, space)  # a resumed search may already have one
    while not session.until_last_trial():
        proposal = next(proposals, None)
        if proposal is None:
            events.note("Nothing that the time left allows promises more: the search ends early.")
            break
        events.on_trial_start(proposal.config, proposal.why, space)
        record = session.trial_runner(
            proposal.config,
            proposal.why,
            session.until_confirmation,
            _floor(session, space),
        )
        record = replace(record, expected=proposal.expected)
        # Judged before it is stored: a crash that unrelated configs share is not the config's fault
        record = judged([*study.records, record], space.baseline)[-1]
        study.tell(proposal.trial, record)
        study.spent_s = session.budget.spent_s  # after each trial: a search may be killed
        _look_for_candidate(session, space)
        events.on_trial_end(len(study.records) - 1, study.records[-1], space)


def _look_for_candidate(session: Session, space: ResolvedSpace) -> None:
    """Tell the session whether there is a candidate and what its confirmation costs.

    The session reserves time for the confirmation accordingly, so this runs after every trial.
    """
    best = next(iter(promising(session.study, space)), None)
    session.has_candidate = best is not None
    session.best_own_process_s = None
    if best is not None and session.needs_own_process(best.config, space):
        session.best_own_process_s = best.cost_s


def _floor(session: Session, space: ResolvedSpace) -> float | None:
    """Return the samples/s below which a config is surely slower than the best one so far."""
    study = session.study
    if study.goal.objective is not Objective.THROUGHPUT:
        return None
    best = next(iter(ranked(study.records, space)), None)
    rate = study.model.rate((space.baseline, session.rigs.mode))
    if best is None or best.speedup is None or rate is None:
        return None
    # The baseline is known up to its interval, and that at the machine's median pace
    return CLEARLY_WORSE * best.speedup.estimate * rate.low * math.exp(-study.model.spreads.drift)
