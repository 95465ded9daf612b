"""How a session divides its budget, and what it leaves out where that is too small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.run_mode import RunMode
from autotune.measurement.step_breakdown import StepBreakdown
from autotune.program.applied_config import AppliedConfig
from autotune.results.record import BaselineInfo, Side, TrialRecord
from autotune.results.result import Finding
from autotune.rig.rig_factory import RigFactory
from autotune.rig.wire import Ready
from autotune.tuning.baseline import Baseline
from autotune.tuning.budget import Budget
from autotune.tuning.conclude import conclude
from autotune.tuning.confirming.confirm import ConfirmationPlan, Failure, confirm, confirm_best
from autotune.tuning.confirming.confirmation import ONE_PROCESS
from autotune.tuning.events import Events
from autotune.tuning.interrupts import InterruptCounter
from autotune.tuning.session import ROUND, TRIALS_WORTH_S, Session
from autotune.tuning.storage.search_dir import SearchDir
from autotune.tuning.storage.study import Study
from autotune.tuning.trial_runner import TrialRunner
from tests.made import (
    make_applied,
    make_hardware,
    make_measurement,
    make_profile,
    make_record,
    make_space,
    make_study,
)

SPACE = make_space(["num_workers", "compile"])
RESOLVED = SPACE.resolve(make_hardware(), make_profile())
BASE = RESOLVED.baseline
OTHER = RESOLVED.canonical(BASE.replace(num_workers=1))


@dataclass
class Clock:
    """A clock that goes only when it is told to."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


class ScriptedRig:
    """A rig whose windows take two seconds each, of the clock that it is given."""

    def __init__(self, clock: Clock, opening_s: float) -> None:
        self.clock = clock
        self.opening_s = opening_s
        self.steps = 0

    def open(self, *_: object) -> Ready:
        """Start."""
        self.clock.now_s += self.opening_s
        return Ready(make_profile(), self.opening_s)

    def close(self) -> None:
        """End at once."""

    def measure(
        self,
        applied: AppliedConfig,
        _plan: object,
        should_stop: Callable[[], Ending | None],
        *_: object,
    ) -> Measurement | Ending:
        self.clock.now_s += 2.0
        rate = 1000.0 if applied.config == BASE else 1500.0
        return should_stop() or make_measurement(rate, spread_pct=0.5)


class ScriptedRigs:
    """Makes them."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.started = 0
        self.hardware = make_hardware()
        self.opening_s = 6.0
        self.mode = RunMode()

    def learn(self, ending: Ending, *, as_written: bool = True) -> bool:
        return False

    def new(self) -> ScriptedRig:
        self.started += 1
        return ScriptedRig(self.clock, self.opening_s)


def no_time(seconds: float, *, is_needed: bool) -> bool:
    return False


@dataclass
class Made:
    """A session after its baseline, and what it is made of."""

    session: Session
    study: Study
    clock: Clock
    rigs: ScriptedRigs

    def confirm(self) -> Any:
        return confirm_best(self.session, baseline())


def made(
    folder: Path, total_s: float, spent_s: float, startup_s: float = 6.0, step_s: float = 0.01
) -> Made:
    clock = Clock()
    study = make_study(folder, SPACE)
    study.facts = BaselineInfo(make_profile(), startup_s, step_s)
    rigs = ScriptedRigs(clock)
    session = Session(
        SearchDir(folder / "train"),
        study,
        Budget(total_s, clock=clock),
        InterruptCounter(),
        Events(),
        cast("RigFactory", rigs),
        TrialRunner(cast("RigFactory", rigs)),
    )
    clock.now_s += spent_s
    session.divide()
    return Made(session, study, clock, rigs)


def tell(study: Study, record: TrialRecord) -> None:
    study.tell(study.ask_for(record.config, RESOLVED), record)


def baseline() -> Baseline:
    applied = replace(make_applied(BASE), baseline=BASE)
    return Baseline(make_profile(), make_measurement(), StepBreakdown(), RESOLVED, applied)


@pytest.mark.parametrize(
    ("total_s", "reserve_s"),
    [
        (180.0, 4 * (6.0 + ROUND.seconds)),
        (90.0, 2 * (6.0 + ROUND.seconds)),
        (70.0, 2 * (6.0 + ROUND.seconds)),
        (58.0, 0.0),
    ],
)
def test_small_budgets_keep_less_for_the_confirmation_until_they_keep_nothing(
    tmp_path: Path, total_s: float, reserve_s: float
) -> None:
    session = made(tmp_path, total_s, spent_s=18.0).session
    assert session.reserve_s == pytest.approx(reserve_s)
    assert session.until_confirmation.left_s() == pytest.approx(
        min(
            total_s - 18.0 - reserve_s - session.rehearsal_s,
            session.budget.wait_s,
        )
    )
    assert session.until_confirmation() is None


def test_a_rehearsal_is_kept_time_for_where_trials_can_spare_it(tmp_path: Path) -> None:
    for total_s, kept_s in ((180.0, 23.72), (100.0, 11.0), (70.0, 0.0), (60.0, 0.0)):
        folder = tmp_path / f"{total_s:.0f}"
        folder.mkdir()
        assert made(folder, total_s, spent_s=18.0).session.rehearsal_s == pytest.approx(kept_s)


def test_a_program_that_starts_slowly_or_steps_slowly_is_rehearsed_when_there_is_time(
    tmp_path: Path,
) -> None:
    for startup_s, step_s, most_s in ((90.0, 0.01, 188.0), (6.0, 6.0, 204.0), (6.0, 0.01, 60.0)):
        folder = tmp_path / f"{most_s:.0f}"
        folder.mkdir()
        session = made(folder, 1200.0, 100.0, startup_s, step_s).session
        assert session.time_to_rehearse_s(kept_s=400.0) == pytest.approx(most_s)


def test_rounds_of_slow_steps_are_planned_by_their_steps(tmp_path: Path) -> None:
    session = made(tmp_path, 600.0, spent_s=60.0, step_s=3.0).session
    assert session.reserve_s == pytest.approx(4 * (6.0 + 3.0 * ROUND.slow_steps))


def test_no_trial_begins_that_could_not_end(tmp_path: Path) -> None:
    session = made(tmp_path, 40.0, spent_s=36.0, step_s=3.0).session
    ending = session.until_last_trial()
    assert session.until_confirmation() is None
    assert ending == Ending(Outcome.OUT_OF_TIME, "the budget is used up")


def test_after_a_baseline_that_took_all_it_is_said_that_nothing_was_compared(
    tmp_path: Path,
) -> None:
    given = made(tmp_path, 40.0, spent_s=39.5)
    tell(given.study, make_record(BASE))
    verdict = given.confirm()
    assert verdict.candidate is None
    assert verdict.reason == "the budget is used up"
    assert not given.rigs.started


def test_without_time_for_fresh_processes_none_is_started_and_it_is_said(tmp_path: Path) -> None:
    given = made(tmp_path, 40.0, spent_s=36.0)
    tell(given.study, make_record(BASE))
    tell(given.study, make_record(OTHER, 1.5))
    verdict = given.confirm()
    assert verdict.candidate.config == OTHER
    assert verdict.confirmation is None
    assert "fresh processes take about 40 s" in verdict.reason
    assert not given.rigs.started


def test_two_rounds_are_enough_one_started_as_each_side(tmp_path: Path) -> None:
    given = made(tmp_path, 90.0, spent_s=50.0)
    tell(given.study, make_record(BASE))
    tell(given.study, make_record(OTHER, 1.5))
    verdict = given.confirm()
    rounds = given.study.confirmation
    assert {len(windows) for windows in rounds} == {4}
    assert [windows[0].side for windows in rounds] == [Side.BASELINE, Side.WINNER]
    assert verdict.confirmation.speedup.estimate == pytest.approx(1.5)
    assert verdict.confirmation.is_faster
    assert verdict.reason == ""


def test_one_process_that_time_allowed_leaves_the_result_unconfirmed_with_both_figures(
    tmp_path: Path,
) -> None:
    given = made(tmp_path, 90.0, spent_s=50.0)
    tell(given.study, make_record(BASE))
    tell(given.study, make_record(OTHER, 1.3))
    given.rigs.opening_s = 27.0  # slower than before
    verdict = given.confirm()
    assert len(given.study.confirmation) == 1
    result = conclude(given.session, baseline(), verdict)
    assert result.finding is Finding.UNCONFIRMED
    assert result.best == BASE
    assert result.reason == ONE_PROCESS
    assert result.candidate_speedup is not None
    assert result.candidate_speedup.estimate == pytest.approx(1.3)
    assert result.unclaimed is not None
    assert result.unclaimed.estimate == pytest.approx(1.5)


def plan(clock: Clock, until_s: float) -> ConfirmationPlan:
    def should_stop() -> Ending | None:
        is_over = clock.now_s > 1000.0 + until_s
        return Ending(Outcome.OUT_OF_TIME, "over") if is_over else None

    rigs = cast("RigFactory", ScriptedRigs(clock))
    return ConfirmationPlan(rigs, RESOLVED, baseline().applied, OTHER, should_stop)


def test_a_round_that_time_ends_does_not_count() -> None:
    kept: list[Any] = []
    clock = Clock()  # six seconds to start, two to warm up, two for each window: three of four
    outcome = confirm(plan(clock, 15.0), [], kept.append, no_time)
    assert isinstance(outcome, Failure)
    assert not kept
    confirm(plan(Clock(), 19.0), [], kept.append, no_time)
    (windows,) = kept
    assert [w.side for w in windows] == [Side.BASELINE, Side.WINNER, Side.WINNER, Side.BASELINE]


def test_one_pair_of_windows_says_nothing() -> None:
    kept: list[Any] = []
    outcome = confirm(plan(Clock(), 13.0), [], kept.append, no_time)
    assert isinstance(outcome, Failure)
    assert outcome.ending == Ending(Outcome.OUT_OF_TIME, "over")
    assert not outcome.is_of_winner
    assert not kept


def test_the_least_of_a_search_is_kept_for_trials(tmp_path: Path) -> None:
    least_s = 2 * (6.0 + ROUND.seconds) + TRIALS_WORTH_S
    assert made(tmp_path, 18.0 + least_s + 0.1, 18.0).session.reserve_s > 0


def test_time_for_a_confirmation_is_not_kept_where_there_is_nothing_to_confirm(
    tmp_path: Path,
) -> None:
    given = made(tmp_path, 180.0, 60.0)
    session, kept_s = given.session, given.session.kept_s
    assert kept_s == session.reserve_s + session.rehearsal_s > 0
    for has_candidate, left_s, is_over in (
        (True, kept_s + 30.0, False),
        (True, kept_s + 0.5, True),
        (False, kept_s + 0.5, False),
        (False, 0.5, True),
    ):
        session.has_candidate = has_candidate
        given.clock.now_s += session.budget.left_s - left_s
        assert (session.until_last_trial() is not None) is is_over, (has_candidate, left_s)


def test_one_ctrl_c_ends_the_search_but_not_what_a_claim_needs(tmp_path: Path) -> None:
    session = made(tmp_path, 180.0, 60.0).session
    for requests, further, needed in ((0, True, True), (1, False, True), (2, False, False)):
        session.stop.requests = requests
        assert session.has_time_for(1.0, is_needed=False) is further
        assert session.has_time_for(1.0, is_needed=True) is needed
    assert not session.has_time_for(1e9, is_needed=True)
