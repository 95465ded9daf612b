"""What the inside of a rig answers: each question once, whoever comes first."""

from __future__ import annotations

import queue
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter, sleep
from typing import Any

import pytest

from autotune.inside import absence
from autotune.inside.absence import MAX_STEPS
from autotune.inside.lead_rank import LeadRank
from autotune.inside.meter import Meter
from autotune.inside.step_tracker import Step
from autotune.measurement.pilot import Pilot
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.program.fence_options import FenceKind
from autotune.program.lr import LrRule
from autotune.program.program_traits import ProgramTraits
from autotune.rig.link import Link, LinkClosed
from autotune.rig.wire import (
    Close,
    Measure,
    Measured,
    NotFinite,
    ProfileStep,
    Progress,
    Ready,
    Start,
    StepProfiled,
    ToRig,
    WindowPlan,
)
from tests.made import A100, H100, PROGRAM, make_profile
from tests.readings import torch_sees, unused

CONFIG = Config({"num_threads": 2})
APPLIED = AppliedConfig(CONFIG, CONFIG, ProgramTraits("cpu"), LrRule.NONE)
LONG = WindowPlan(0.0, 600.0, 600.0, 600.0, most_s=600.0)
SHORT = WindowPlan(0.0, 0.0, 0.0, 0.0)


class ProgramQuitError(Exception):
    """In place of the end of the process."""


@dataclass
class Parent:
    """The other side of a driver, which is in the middle of a window.

    Attributes:
        theirs: Reads what the driver says.
    """

    driver: LeadRank
    theirs: Link
    commands: queue.SimpleQueue[ToRig]
    answers: list[tuple[str, int]] = field(default_factory=list)

    def ask(self, *commands: ToRig) -> None:
        for command in commands:
            self.commands.put(command)

    def hears_life(self) -> bool:
        """Tell whether the driver has given a sign of life since this was last asked."""
        life = False
        while (message := self.theirs.receive(0.0)) is not None:
            life = life or isinstance(message, Progress)
        return life

    def let_run(self, borders: int) -> None:
        """Let the program come to so many borders, or to its end."""
        try:
            for _ in range(borders):
                self.driver.on_step_end(Step(8, 0.0, 0))
        except ProgramQuitError:
            pass

    def heard(self) -> list[tuple[str, int]]:
        """Return the answers so far, by what they are and the number of their question."""
        try:
            while (message := self.theirs.receive(0.0)) is not None:
                if isinstance(message, Measured | StepProfiled | NotFinite):
                    self.answers.append((message.kind, message.number))
        except LinkClosed:
            pass
        return self.answers

    @property
    def meter(self) -> Meter:
        assert self.driver._meter is not None
        return self.driver._meter


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Parent]:
    for thread in (
        "_describe_start",
        "_watch_forks",
        "_tell_of_absences",
    ):  # there is no program to look after
        monkeypatch.setattr(LeadRank, thread, lambda _: None)
    commands: queue.SimpleQueue[ToRig] = queue.SimpleQueue()
    ours, theirs = socket.socketpair()

    def quit_process() -> None:
        raise ProgramQuitError

    start = Start(PROGRAM, None, "", FenceKind.OVERLAY)
    driver = LeadRank(Link(ours), commands, start, perf_counter(), quit_process)
    driver._is_ready.set()
    other = Link(theirs)
    try:
        yield Parent(driver, other, commands)
    finally:
        driver._overtime.cancel()
        if driver._overtime.ident is not None:
            driver._overtime.join()
        driver.seams.remove()
        driver._pilots.give_up()
        other.close()
        ours.close()


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_parent_is_told_the_gpus_of_a_program_that_trains_on_one(
    parent: Parent, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """There is no GPU here, so the observer says what it would have seen."""
    seen = (unused(H100), A100)
    torch_sees(monkeypatch, *seen)
    driver = parent.driver
    monkeypatch.setattr(driver.observer, "device", lambda: device)
    monkeypatch.setattr(driver.observer, "profile", lambda _: make_profile(device=device))
    parent.ask(Close())
    with pytest.raises(ProgramQuitError):
        driver.observed()
    ready = parent.theirs.receive(0.0)
    assert isinstance(ready, Ready)
    assert ready.devices == (seen if device == "cuda" else ())
    assert ready.gpus == 2, "how many it could use is known of a program on the CPU as well"


@pytest.mark.parametrize("moment", ["_progress", "_gather"])
def test_time_that_is_up_while_the_program_is_at_a_border_gives_one_answer(
    parent: Parent, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The timer is called where it once came in between; no clock could meet that moment."""
    driver = parent.driver
    parent.ask(Measure(APPLIED, LONG, 1), Measure(APPLIED, SHORT, 2), Close(), Close())
    driver._obey()
    meter, went_on = parent.meter, getattr(driver, moment)

    def then_time_is_up(*arguments: Any) -> Any:
        result = went_on(*arguments)
        driver._answer_in_overtime(meter)
        return result

    monkeypatch.setattr(driver, moment, then_time_is_up)
    driver._sent = -1e9  # a sign of life is due
    parent.let_run(1)
    driver._sent = -1e9
    parent.let_run(1)
    parent.let_run(10_000_000)
    assert parent.heard() == [("measured", 1), ("measured", 2)]


def test_after_the_program_has_ended_time_that_is_up_gives_no_answer(parent: Parent) -> None:
    parent.ask(Measure(APPLIED, LONG, 1))
    parent.driver._obey()
    parent.let_run(2)
    parent.driver.program_ended()
    parent.driver._answer_in_overtime(parent.meter)
    parent.driver.program_ended()
    assert parent.heard() == []


def test_a_program_that_fails_is_not_measured_however_much_of_a_window_there_was(
    parent: Parent,
) -> None:
    parent.driver._is_brief = True
    for number, has_failed in ((1, True), (2, False)):
        parent.ask(Measure(APPLIED, LONG, number))
        parent.driver._obey()
        parent.let_run(3)
        parent.driver.program_ended(has_failed=has_failed)
    assert parent.heard() == [("measured", 2)]


def test_a_loss_that_is_not_finite_is_answered_with_the_number_of_its_question(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent.driver, "_read_loss", lambda: float("nan"))
    parent.ask(Measure(APPLIED, SHORT, 7), Close())
    parent.driver._obey()
    parent.let_run(10)
    assert parent.heard() == [("not_finite", 7)]


def test_of_a_long_absence_the_parent_is_told_and_of_a_short_one_not(parent: Parent) -> None:
    driver, told = parent.driver, driver_phases(parent)
    for _ in range(100):  # epochs of a few steps
        driver.paused()
        driver.resumed(0.0)
    driver._absence.tell(driver._progress)
    assert told() == []
    driver.paused()
    driver._absence.tell(driver._progress)
    driver._sent = -1e9  # an evaluation goes on for long
    driver.disturbed()
    assert told() == ["between epochs", "between epochs"]
    driver.resumed(0.0)
    for _ in range(2):
        driver._absence.tell(driver._progress)
    assert told() == ["warm-up"]
    driver.forks.is_child = True
    driver.paused()
    driver._sent = -1e9
    driver.disturbed()
    assert told() == [], "a forked process has no wire"


def driver_phases(parent: Parent) -> Callable[[], list[str]]:
    def told() -> list[str]:
        messages = iter(lambda: parent.theirs.receive(0.0), None)
        return [message.phase for message in messages if isinstance(message, Progress)]

    return told


def test_a_program_that_goes_on_to_train_with_other_loaders_has_come_to_its_end(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = parent.driver
    monkeypatch.setattr(absence, "LONGEST_S", 0.0)
    for epoch_steps, away in ((0, MAX_STEPS), (3 * MAX_STEPS, 3 * MAX_STEPS)):
        driver.paused()
        driver._feed_steps, before = epoch_steps, driver.steps
        while driver.steps < before + away:
            driver.step_made()
        with pytest.raises(ProgramQuitError):
            driver.step_made()
    for longest_s, comes_back in ((0.0, True), (600.0, False)):
        monkeypatch.setattr(absence, "LONGEST_S", longest_s)
        driver.paused()
        driver._feed_steps = 0
        for _ in range(10 * MAX_STEPS):
            driver.step_made()
            if comes_back:
                driver.resumed(0.0)


def test_a_dissection_has_the_number_of_its_question(parent: Parent) -> None:
    parent.ask(Measure(APPLIED, SHORT, 3), ProfileStep(SHORT, 4), Close())
    parent.driver._obey()
    parent.let_run(10_000_000)
    assert parent.heard() == [("measured", 3), ("step_profiled", 4)]


def test_pilots_take_their_time_from_the_window_and_none_follow_where_it_was_up(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[float] = []

    def read(*_: object) -> tuple[Pilot, ...]:
        reads.append(perf_counter())
        sleep(0.05)
        return ()

    monkeypatch.setattr(parent.driver._pilots, "read", read)
    short = WindowPlan(0.0, 600.0, 600.0, 600.0, most_s=0.5)
    parent.ask(Measure(APPLIED, LONG, 1), Measure(APPLIED, short, 2), Close())
    parent.driver._obey()
    most_s = parent.meter.plan.most_s
    assert most_s is not None
    assert most_s <= 599.95
    parent.meter._asked -= 600.0
    parent.let_run(100_000_000)
    assert parent.heard() == [("measured", 1), ("measured", 2)]
    assert len(reads) == 2, "one before each window"


def test_a_look_at_another_batch_gives_signs_of_life_and_takes_its_time_from_the_windows(
    parent: Parent,
) -> None:
    driver, own = parent.driver, Config({"batch_size": 8})
    applied = AppliedConfig(Config({"batch_size": 32}), own, ProgramTraits("cpu"), LrRule.AUTO)
    parent.ask(Measure(applied, LONG, 1), Close())
    driver._obey()
    driver._sent = -1e9  # one is due
    parent.let_run(1)
    assert parent.hears_life()
    driver._asked_at -= 200.0
    while driver._meter is None:
        parent.let_run(1)
    most_s = parent.meter.plan.most_s
    assert most_s is not None
    assert 399.0 < most_s <= 400.0
