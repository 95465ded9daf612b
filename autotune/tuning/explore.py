"""Exploration: measure one proposed config after another until the confirmation is due.

What is measured here only selects a candidate; claims rest on the confirmation alone.
"""

from __future__ import annotations

from dataclasses import replace

from autotune.knobs.space.space import ResolvedSpace
from autotune.results.blame import judged
from autotune.tuning.choosing.diagnosis import Diagnosis
from autotune.tuning.choosing.proposals import Proposals, ranked
from autotune.tuning.confirm import promising
from autotune.tuning.session import Session


def explore(session: Session, space: ResolvedSpace, diagnosis: Diagnosis) -> None:
    """Measure the proposed configs and record each; a failed trial does not end the search.

    It ends when only the time reserved for rehearsal and confirmation is left, when nothing better
    is in sight, or at the first Ctrl-C.
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
            events.note("Nothing better is in sight: the search ends early.")
            break
        events.on_trial_start(proposal.config, proposal.why, space)
        record = session.trial_runner(
            proposal.config,
            proposal.why,
            session.until_confirmation,
            _best_speedup(session, space),
        )
        record = replace(record, expected=proposal.expected)
        # Judged before it is stored: a crash that unrelated configs share is not the config's fault
        record = judged([*study.records, record], space.baseline)[-1]
        study.tell(proposal.trial, record)
        study.spent_s = session.budget.spent_s  # after each trial: a search may be killed
        _look_for_candidate(session, space)
        events.on_trial_end(len(study.records) - 1, record, space)


def _look_for_candidate(session: Session, space: ResolvedSpace) -> None:
    """Tell the session whether there is a candidate and what its confirmation costs.

    The session reserves time for the confirmation accordingly, so this runs after every trial.
    """
    best = next(iter(promising(session.study, space)), None)
    session.has_candidate = best is not None
    session.best_own_process_s = None
    if best is not None and session.needs_own_process(best.config, space):
        session.best_own_process_s = best.cost_s


def _best_speedup(session: Session, space: ResolvedSpace) -> float | None:
    best = next(iter(ranked(session.study.records, space)), None)
    return best.speedup.estimate if best is not None and best.speedup is not None else None
