"""Reach: which settings a budget holds, and which budget would hold the others. Pure functions.

It follows from the plan alone, so from the seconds that this program's start and steps were
measured to take.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from autotune.knobs.space.space import ResolvedSpace
from autotune.tuning.live_rig import ALONE_S, WARM_UP_S
from autotune.tuning.plan import COMPILING_S, OWN_TURNS_S, Plan

BUDGET_STEP_S = 30.0  # between the budgets that are named
MOST_BUDGET_S = 7 * 24 * 3600.0  # beyond, no budget is named


@dataclass(frozen=True)
class Missed:
    """What a budget does not hold, and about the least one that does, in seconds.

    It is infinite where no budget of a week does.
    """

    what: str
    budget_s: float


@dataclass(frozen=True)
class Reach:
    """What a budget holds.

    Attributes:
        tried: Settings of which other values are tried.
        missed: Settings of which the budget has no time to try other values.
        spare: Settings that are tried if the others leave time: each value takes fresh processes,
            and the user did not ask for it.
    """

    tried: tuple[str, ...] = ()
    missed: tuple[Missed, ...] = ()
    spare: tuple[str, ...] = ()


def reach(plan: Plan, space: ResolvedSpace) -> Reach:
    """Return what a budget holds of a space, by its plan after the program was measured."""
    needed = {knob: _budget_s(plan, space, knob) for knob in space.domains}
    held = [knob for knob, budget_s in needed.items() if budget_s <= plan.total_s]
    missed = [Missed(knob, needed[knob]) for knob in needed if knob not in held]
    spare = [knob for knob in held if knob in space.restart - space.asked]
    tried = [knob for knob in held if knob not in spare]
    return Reach(tuple(tried), tuple(missed), tuple(spare))


def _budget_s(plan: Plan, space: ResolvedSpace, knob: str) -> float:
    plans = (
        replace(plan, total_s=total_s, divided_s=plan.divided_s + total_s - plan.total_s)
        for total_s in _totals(plan.total_s)
    )
    holding = (one.total_s for one in plans if _holds(one, space, knob) and _is_worth(one, plan))
    return next(holding, math.inf)


def _is_worth(larger: Plan, plan: Plan) -> bool:
    # Nobody is sent to a budget that tries more and can confirm nothing
    return larger.total_s == plan.total_s or larger.reserve_s > 0


def _totals(total_s: float) -> Iterator[float]:
    yield total_s
    while total_s < MOST_BUDGET_S:
        total_s = BUDGET_STEP_S * (1 + 1.02 * total_s // BUDGET_STEP_S)
        yield total_s


def _holds(plan: Plan, space: ResolvedSpace, knob: str) -> bool:
    plan = plan.after_canary
    for_trials_s = plan.divided_s - plan.kept_s
    if knob not in space.restart:
        least_s = 2 * COMPILING_S if knob == "compile" else plan.least_trial_s
        return for_trials_s > least_s
    # The race leaves half of the time for trials to what was asked for. How long it takes to leave
    # as much otherwise is not known: 2 min to an hour in scripted searches.
    apart_s = plan.claim_s(is_apart=True) + plan.startup_s + WARM_UP_S + ALONE_S
    return for_trials_s / 2 + plan.reserve_s + OWN_TURNS_S > apart_s
