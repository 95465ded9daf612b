"""The search as a table of contents: from the program as written to a trustworthy result."""

from __future__ import annotations

from autotune.results.result import SearchResult
from autotune.tuning.baseline import measure_baseline
from autotune.tuning.conclude import conclude
from autotune.tuning.confirm import confirm_best
from autotune.tuning.diagnosis import diagnose
from autotune.tuning.events import Events
from autotune.tuning.explore import explore
from autotune.tuning.rehearse import rehearse_best
from autotune.tuning.search_dir import SearchDir
from autotune.tuning.session import search_session
from autotune.tuning.study import Study
from autotune.tuning.surroundings import THIS_MACHINE, Surroundings


def search(
    run: SearchDir,
    study: Study,
    budget_s: float,
    events: Events,
    surroundings: Surroundings = THIS_MACHINE,
) -> SearchResult:
    """Search, or go on searching, what a study is about.

    Raises:
        ProgramError: when the program fails by itself or trains no step.
        BudgetError: when the budget ends before the baseline is measured.
        UsageError: when a knob that the user named cannot act here.
    """
    with search_session(run, study, budget_s, events, surroundings) as session:
        baseline = measure_baseline(session)
        diagnosis = diagnose(
            baseline.profile,
            baseline.measurement,
            baseline.space,
            study.head.hardware,
            baseline.breakdown,
        )
        events.on_diagnosis(diagnosis, baseline.space)
        explore(session, baseline.space, diagnosis)
        rehearse_best(session, baseline)
        confirmed = confirm_best(session, baseline)
        return conclude(session, baseline, confirmed)
