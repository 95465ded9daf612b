"""Workflow: the phases of a search in order, from the untouched program to the result.

Each phase is one function in a module of the same name. They share a ``Session``, which holds the
budget, the record and the rigs.
"""

from __future__ import annotations

from autotune.results.result import SearchResult
from autotune.tuning.apart import try_apart
from autotune.tuning.baseline import diagnosed, measure_baseline
from autotune.tuning.checking.canary import cleared
from autotune.tuning.checking.learning_check import with_growth
from autotune.tuning.checking.rehearse import rehearse_best
from autotune.tuning.claiming.claim import claim_best, play_on
from autotune.tuning.claiming.larger import with_larger
from autotune.tuning.conclude import conclude
from autotune.tuning.events import Events
from autotune.tuning.race import race
from autotune.tuning.reach import reach
from autotune.tuning.session import Finish, search_session
from autotune.tuning.storage.search_dir import SearchDir
from autotune.tuning.storage.study import Study
from autotune.tuning.surroundings import THIS_MACHINE, Surroundings


def search(
    run: SearchDir,
    study: Study,
    budget_s: float,
    events: Events,
    surroundings: Surroundings = THIS_MACHINE,
    finish: Finish = lambda _: None,
) -> SearchResult:
    """Start a search, or continue an earlier one, and return its result.

    Both run the same phases: the study tells each phase what has already been recorded, and a phase
    does not repeat it. The caller must have taken the study's lease; it is released at the end,
    also when an error is raised.

    Args:
        finish: Writes the result's files. It is called while rigs may still run: a process that was
            told to end may be killed while it closes them.

    Raises:
        ProgramError: when the program fails by itself or trains no step.
        BudgetError: when the budget ends before the baseline is measured.
        UsageError: when a knob that the user named cannot act here.
        FenceError: when nothing keeps the program from changing the user's files.
        Terminated: when SIGTERM or SIGHUP ends the search; it holds the result.
    """
    with search_session(run, study, budget_s, events, surroundings) as session:
        # A table of contents: each phase reads what it needs from the study, so the same lines
        # serve a new search and one that is resumed. Whatever ends it early, what was measured by
        # then counts.
        baseline, diagnosis, claimed = with_growth(session, measure_baseline(session)), None, None
        session.join(baseline)
        session.warn_if_short()
        with session.what_is_measured_counts():
            held = reach(session.plan, baseline.space)
            diagnosis = diagnosed(session, baseline)
            events.on_diagnosis(diagnosis, baseline.space, held)
            baseline = cleared(session, baseline)
            diagnosis = diagnosed(session, baseline)
            race(session, baseline, diagnosis)
            play_on(session, baseline)
            try_apart(session, baseline, diagnosis)
            while rehearse_best(session, baseline):  # all that looked faster fails
                race(session, baseline, diagnosis)
            claimed = claim_best(session, baseline)
            claimed = with_larger(session, baseline, claimed)
        claimed = claimed or claim_best(session, baseline)
        return session.keep(conclude(session, baseline, claimed, diagnosis), finish)
