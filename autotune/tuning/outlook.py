"""Outlook: the first phase of a search alone, which says what the search would try."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.measurement import Measurement
from autotune.program.profile import Profile
from autotune.tuning.baseline import measure_baseline
from autotune.tuning.checking.learning_check import with_growth
from autotune.tuning.events import Events
from autotune.tuning.plan import Plan
from autotune.tuning.session import search_session
from autotune.tuning.storage.search_dir import SearchDir
from autotune.tuning.storage.study import Study
from autotune.tuning.surroundings import THIS_MACHINE, Surroundings


@dataclass(frozen=True)
class Outlook:
    """What a search would do to a program, as far as its first phase shows it.

    Attributes:
        space: The settings that would be tried, with their values, and why others are not.
        plan: How the budget would be divided.
        fence: What keeps trials from changing files, as a sentence.
        took_s: Seconds that the phase took.
    """

    profile: Profile
    measurement: Measurement
    space: ResolvedSpace
    plan: Plan
    fence: str
    took_s: float


def outlook(
    run: SearchDir, study: Study, events: Events, surroundings: Surroundings = THIS_MACHINE
) -> Outlook:
    """Start a program once, as written, and return what a search of it would try.

    It is the first phase of a search, so that the search cannot try anything else. The caller must
    have taken the study's lease.

    Raises:
        AutotuneError: as ``search()`` does.
    """
    budget_s = study.head.options.budget_s
    with search_session(run, study, budget_s, events, surroundings) as session:
        baseline = with_growth(session, measure_baseline(session))
        return Outlook(
            baseline.profile,
            baseline.measurement,
            baseline.space,
            session.plan,
            session.rigs.fence.sentence,
            session.budget.spent_s,
        )
