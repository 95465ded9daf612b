"""The search as a table of contents: from the program as written to a trustworthy result."""

from __future__ import annotations

from autotune.baseline import measure_baseline
from autotune.confirm import confirm_best
from autotune.console import Console
from autotune.diagnosis import diagnose
from autotune.explore import explore
from autotune.rehearse import rehearse_best
from autotune.result import SearchResult, conclude
from autotune.rundir import RunDir
from autotune.session import sitting
from autotune.study import Study


def search(run: RunDir, study: Study, budget_s: float, console: Console) -> SearchResult:
    """Search, or go on searching, what a study is about.

    Raises:
        ProgramError: when the program fails by itself or trains no step.
        BudgetError: when the budget ends before the baseline is measured.
        UsageError: when a knob that the user named cannot act here.
    """
    with sitting(run, study, budget_s, console) as session:
        baseline = measure_baseline(session)
        diagnosis = diagnose(
            baseline.profile,
            baseline.measurement,
            baseline.space,
            study.head.hardware,
            baseline.anatomy,
        )
        console.diagnosed(diagnosis, baseline.space)
        explore(session, baseline.space, diagnosis)
        rehearse_best(session, baseline)
        contest = confirm_best(session, baseline)
        return conclude(session, baseline, contest)
