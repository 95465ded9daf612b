"""How a session divides its budget, and what it leaves out where that is too small."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from autotune.machine.hardware import Hardware
from autotune.measurement.examination import StepBreakdown
from autotune.results.finding import Finding
from autotune.results.record import BaselineInfo, TrialRecord
from autotune.rig.open_rig import SILENT, Reports
from autotune.rig.rig_factory import RigFactory
from autotune.tuning.budget import Budget, InterruptCounter
from autotune.tuning.claiming.claim import ClaimResult, claim_best
from autotune.tuning.conclude import conclude
from autotune.tuning.events import Events
from autotune.tuning.live_rig import LiveRig, Stay
from autotune.tuning.plan import OWN_TURNS_S, PROCESS, TURNS
from autotune.tuning.session import Baseline, Session
from autotune.tuning.storage.search_dir import SearchDir
from autotune.tuning.storage.study import Study
from tests.made import (
    PROGRAM,
    make_applied,
    make_hardware,
    make_measurement,
    make_profile,
    make_record,
    make_space,
    make_study,
)
from tests.rigging import never
from tests.scripted import Script, ScriptedMachine, ScriptedRigs, VirtualClock

SPACE = make_space(["workers", "precision", "flush_denormal"])
RESOLVED = SPACE.resolve(make_hardware(), make_profile())
BASE = RESOLVED.baseline
OTHER = RESOLVED.canonical(BASE.replace(workers=1))
# A process of the claim of a program that starts in 6 s
EACH_S = 6.0 + PROCESS.seconds + TURNS.seconds


@dataclass
class NoRigs:
    """Makes no rigs."""

    clock: VirtualClock
    started: int = 0
    hardware: Hardware = field(default_factory=make_hardware)
    reports: Reports = SILENT


@dataclass
class Made:
    """A session after its baseline, and what it is made of."""

    session: Session
    study: Study
    clock: VirtualClock


def made(
    folder: Path, total_s: float, spent_s: float, startup_s: float = 6.0, step_s: float = 0.01
) -> Made:
    folder.mkdir(exist_ok=True)
    clock = VirtualClock()
    study = make_study(folder, SPACE)
    study.facts = BaselineInfo(make_profile(), startup_s, step_s)
    rigs = cast("RigFactory", NoRigs(clock))
    session = Session(
        SearchDir(folder / "train"),
        study,
        Budget(total_s, clock=clock),
        InterruptCounter(),
        Events(),
        rigs,
        LiveRig(rigs),
    )
    clock.now_s += spent_s
    session.divide()
    return Made(session, study, clock)


def tell(study: Study, record: TrialRecord) -> None:
    study.tell(record, RESOLVED)


def baseline() -> Baseline:
    applied = make_applied(BASE, baseline=BASE)
    return Baseline(make_profile(), make_measurement(), StepBreakdown(), RESOLVED, applied)


@pytest.mark.parametrize(("total_s", "processes"), [(180.0, 4), (120.0, 3), (70.0, 2), (50.0, 0)])
def test_small_budgets_keep_less_for_the_claim_until_they_keep_nothing(
    tmp_path: Path, total_s: float, processes: int
) -> None:
    session = made(tmp_path, total_s, spent_s=18.0).session
    assert session.plan.reserve_s == pytest.approx(processes * EACH_S)
    kept_s = session.plan.reserve_s + session.plan.rehearsal_s + (OWN_TURNS_S if processes else 0)
    assert session.until_confirmation.left_s() == pytest.approx(
        min(total_s - 18.0 - kept_s, session.budget.wait_s)
    )
    assert session.until_confirmation() is None


def test_what_is_kept_for_the_claim_leaves_time_for_a_trial(tmp_path: Path) -> None:
    for step_s in (0.01, 0.9):
        for total_s in range(30, 200, 2):
            folder = tmp_path / f"{step_s} {total_s}"
            plan = made(folder, float(total_s), spent_s=18.0, step_s=step_s).session.plan
            left_s = plan.divided_s - plan.kept_s
            assert not plan.reserve_s or left_s >= plan.least_trial_s, (step_s, total_s)


def test_a_stay_goes_on_after_a_slow_first_step_until_it_has_seen_steady_ones(
    tmp_path: Path,
) -> None:
    """Such as one in which cuDNN tries its kernels, or 24 workers start."""
    machine = ScriptedMachine(Script(step_s=0.05, noise=0.0, process_noise=0.0, first_turn_s=7.0))
    rigs = ScriptedRigs(machine, PROGRAM, tmp_path, make_hardware(), clock=machine.clock)
    live = LiveRig(rigs).set_up(RESOLVED, make_applied(BASE, baseline=BASE))
    assert live.ready_for(BASE, never) is None
    stay = live.stay(BASE, never)
    assert isinstance(stay, Stay)
    assert sum(len(turn.seconds) for turn in stay.turns) >= 5
    assert {round(seconds, 6) for turn in stay.turns for seconds in turn.seconds} == {0.05}


def test_the_budget_that_a_short_search_names_is_enough_for_what_it_left(tmp_path: Path) -> None:
    short = made(tmp_path / "short", 60.0, spent_s=18.0).session
    short.divide(needs_pairs=True)
    assert not short.may_restart()
    starting_again_s = short.plan.startup_s
    spent_s = short.budget.spent_s + starting_again_s
    resumed = made(tmp_path / "resumed", short.worth_s, spent_s=spent_s).session
    resumed.divide(needs_pairs=True)
    assert resumed.may_restart()


def test_time_for_a_claim_is_not_kept_where_there_is_nothing_to_claim(tmp_path: Path) -> None:
    given = made(tmp_path, 180.0, 60.0)
    session, kept_s = given.session, given.session.plan.kept_s
    assert kept_s == session.plan.reserve_s + session.plan.rehearsal_s + OWN_TURNS_S
    for has_candidate, left_s, is_over in (
        (True, kept_s + 30.0, False),
        (True, kept_s + 0.5, True),
        (False, kept_s + 0.5, False),
        (False, 0.5, True),
    ):
        session.has_candidate = has_candidate
        given.clock.now_s += session.budget.left_s - left_s
        assert (session.until_last_trial() is not None) is is_over, (has_candidate, left_s)


def test_a_baseline_that_took_all_leaves_nothing_compared(tmp_path: Path) -> None:
    given = made(tmp_path, 40.0, spent_s=39.5)
    tell(given.study, make_record(BASE))
    verdict = claim_best(given.session, baseline())
    assert verdict == ClaimResult(None, reason="the budget is used up")
    assert conclude(given.session, baseline(), verdict).finding is Finding.NOT_MEASURED
