"""What a budget is said to hold, before anything is tried, by the seconds of the program."""

from dataclasses import replace
from pathlib import Path

from autotune.tuning.budget import Reach
from autotune.tuning.plan import Plan
from autotune.tuning.reach import reach
from tests.made import make_hardware, make_profile, make_space
from tests.scripted import Script
from tests.tuning.watched import Knobs, found

SPACE = make_space(["workers", "precision", "compile", "flush_denormal"]).resolve(
    make_hardware(), make_profile()
)


def plan_of(total_s: float, startup_s: float = 6.0, step_s: float = 0.01) -> Plan:
    spent_s = startup_s + 4.0
    return Plan(total_s, total_s - spent_s, startup_s, step_s)


def test_a_short_budget_names_what_it_cannot_try_and_the_budget_that_can() -> None:
    found = reach(plan_of(90.0), SPACE)
    assert found.tried == ("workers", "precision")
    assert not found.spare
    missed = {one.what: one.budget_s for one in found.missed}
    assert set(missed) == {"compile", "flush_denormal"}
    assert all(budget_s % 30 == 0 for budget_s in missed.values())
    for what, budget_s in missed.items():
        assert what in {*reach(plan_of(budget_s), SPACE).tried, "flush_denormal"}
        assert what in {one.what for one in reach(plan_of(budget_s - 31), SPACE).missed}


def test_what_needs_fresh_processes_is_tried_for_sure_only_where_it_was_asked_for() -> None:
    asked = replace(SPACE, asked=frozenset({"flush_denormal"}))
    assert reach(plan_of(900.0), SPACE).spare == ("flush_denormal",)
    assert reach(plan_of(900.0), asked).spare == ()
    assert "flush_denormal" in reach(plan_of(900.0), asked).tried


def test_a_program_that_starts_slowly_needs_a_larger_budget() -> None:
    budgets = [
        {one.what: one.budget_s for one in reach(plan_of(120.0, startup_s), SPACE).missed}
        for startup_s in (4.0, 60.0)
    ]
    assert all(budgets[0][what] < budgets[1][what] for what in ("compile", "flush_denormal"))
    assert reach(plan_of(5.0, startup_s=1e6), SPACE).missed[0].budget_s > 3600.0


def test_what_is_said_of_compiling_is_what_the_search_then_does(tmp_path: Path) -> None:
    knobs: Knobs = {"compile": ("off", "default"), "workers": (0, 1)}
    told = set[bool]()
    for budget_s in (90.0, 150.0, 180.0, 300.0):
        search, result = found(tmp_path / f"{budget_s}", Script(), budget_s, knobs)
        facts = search.study.facts
        assert facts is not None
        space = search.study.head.resolve(result.hardware, facts.profile)
        plan = Plan(budget_s, budget_s - facts.startup_s - 4.0, facts.startup_s, facts.step_s)
        is_said = "compile" in reach(plan, space).tried
        assert is_said is ("compile" not in result.untried), budget_s
        told.add(is_said)
    assert told == {True, False}


def test_nothing_is_missed_where_nothing_is_searched() -> None:
    assert reach(plan_of(60.0), replace(SPACE, domains={})) == Reach()
