"""What the inside of a rig answers: each question once, whoever comes first."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from time import perf_counter, sleep

import pytest
import torch

from autotune.inside.processes import lead_rank, reporter
from autotune.inside.processes.lead_rank import LeadRank
from autotune.inside.processes.reporter import MAX_STEPS, Reporter
from autotune.inside.step_counts import Step
from autotune.inside.step_tracker import StepTracker
from autotune.machine.probes.torch_memory import SpareMemory
from autotune.measurement.turn import PlannedTurn, Turn
from autotune.program.applied_config import AppliedConfig, ProgramTraits
from autotune.program.config import Config
from autotune.program.fence_options import FenceKind
from autotune.program.lr import LrRule
from autotune.rig.wire import (
    Close,
    Examine,
    Examined,
    Link,
    LinkClosed,
    ProfileStep,
    Ready,
    Start,
    StepProfiled,
    TakeTurns,
    TookTurns,
    ToRig,
)
from tests.gpu_fakes import FakeCuda, unused
from tests.made import A100, H100, PROGRAM, make_profile

CONFIG = Config({"threads": 2})
APPLIED = AppliedConfig(CONFIG, CONFIG, ProgramTraits("cpu"), LrRule.NONE)


def turns(number: int, steps: int = 2, *configs: AppliedConfig) -> TakeTurns:
    """Return a question for two turns of so many steps each, of the last config."""
    configs = configs or (APPLIED,)
    return TakeTurns(configs, (PlannedTurn(len(configs) - 1, steps),) * 2, number)


class ProgramQuitError(Exception):
    """In place of the end of the process."""


@dataclass
class Parent:
    """The other side of a driver, which is in the middle of a training.

    Attributes:
        theirs: Reads what the driver says.
        taken: The turns of each answer so far.
    """

    driver: LeadRank
    theirs: Link
    commands: queue.SimpleQueue[ToRig]
    answers: list[tuple[str, int]] = field(default_factory=list)
    taken: list[tuple[Turn, ...]] = field(default_factory=list)

    def ask(self, *commands: ToRig) -> None:
        for command in commands:
            self.commands.put(command)

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
                if isinstance(message, TookTurns | StepProfiled | Examined):
                    self.answers.append((message.kind, message.number))
                if isinstance(message, TookTurns):
                    self.taken.append(message.taken.turns)
        except LinkClosed:
            pass
        return self.answers


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Parent]:
    for thread in ("_describe", "_watch_forks"):  # there is no program to look after
        monkeypatch.setattr(Reporter, thread, lambda _: None)
    commands: queue.SimpleQueue[ToRig] = queue.SimpleQueue()
    ours, theirs = socket.socketpair()

    def quit_process() -> None:
        raise ProgramQuitError

    start = Start(PROGRAM, None, "", FenceKind.OVERLAY)
    driver = LeadRank(Link(ours), commands, start, perf_counter(), quit_process)
    driver._reporter.start_is_over.set()
    other = Link(theirs)
    try:
        yield Parent(driver, other, commands)
    finally:
        driver.tracker.seams.remove()
        if driver._overtime is not None:
            driver._overtime.join(60.0)
        other.close()
        ours.close()


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_parent_is_told_the_gpus_of_a_program_that_trains_on_one(
    parent: Parent, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """There is no GPU here, so the observer says what it would have seen."""
    seen = (unused(H100), replace(A100, usable_bytes=A100.memory_bytes))
    FakeCuda(monkeypatch, *seen)
    driver = parent.driver
    monkeypatch.setattr(StepTracker, "device", device)
    monkeypatch.setattr(driver.tracker, "profile", lambda: make_profile(device=device))
    parent.ask(Close())
    with pytest.raises(ProgramQuitError):
        driver.observed()
    ready = parent.theirs.receive(0.0)
    assert isinstance(ready, Ready)
    assert ready.devices == (seen if device == "cuda" else ())


def test_each_question_is_answered_once_with_its_number(parent: Parent) -> None:
    parent.ask(turns(3), turns(4, 5), ProfileStep(0.0, 5), Examine(6), Close())
    parent.driver._obey()
    ends_s = perf_counter() + 60.0
    while len(parent.heard()) < 4 and perf_counter() < ends_s:
        parent.let_run(1000)
    assert parent.heard() == [
        ("took_turns", 3),
        ("took_turns", 4),
        ("step_profiled", 5),
        ("examined", 6),
    ]
    assert [[len(turn.seconds) for turn in taken] for taken in parent.taken] == [[2, 2], [5, 5]]
    assert {turn.samples for turn in parent.taken[0]} == {(8, 8)}


def test_memory_is_left_free_in_the_turns_of_configs_but_the_programs_own(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[bool] = []
    note = lambda _, *, is_as_written: kept.append(not is_as_written)  # noqa: E731
    monkeypatch.setattr(SpareMemory, "switch", note)
    other = replace(APPLIED, config=CONFIG.replace(threads=1))
    parent.ask(turns(1), turns(2, 2, APPLIED, other), turns(3, 2, other), turns(4), Close())
    parent.driver._obey()
    parent.let_run(20)
    assert [is_kept for is_kept, _ in groupby(kept)] == [False, True, False]


def test_an_examination_is_answered_in_time_with_what_it_found_where_an_item_never_comes(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lead_rank, "MOST_EXAMINED_S", 0.1)
    parent.ask(Examine(1))
    parent.driver._obey()
    ends_s = perf_counter() + 60.0
    while not parent.heard() and perf_counter() < ends_s:
        sleep(0.01)
    assert parent.heard() == [("examined", 1)]


def test_a_program_that_ends_gives_its_whole_turns_once_and_one_that_fails_nothing(
    parent: Parent,
) -> None:
    for number, has_failed in ((1, True), (2, False)):
        parent.ask(turns(number))
        parent.driver._obey()
        parent.let_run(3)
        parent.driver.program_ended(has_failed=has_failed)
        parent.driver._task = None
        parent.driver.program_ended(has_failed=False)
    assert parent.heard() == [("took_turns", 2)]
    assert [len(taken) for taken in parent.taken] == [1]


def test_a_loss_from_before_the_turns_does_not_count_and_one_that_is_not_finite_does(
    parent: Parent,
) -> None:
    parent.driver.tracker.loss = torch.tensor(float("nan"))
    parent.ask(turns(1), Close())
    parent.driver._obey()
    parent.let_run(2)
    parent.driver.tracker.loss = torch.tensor(float("inf"))
    parent.let_run(2)
    parent.heard()
    assert [turn.is_finite for turn in parent.taken[0]] == [True, False]


def test_a_program_that_goes_on_to_train_with_other_loaders_has_come_to_its_end(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, tracker = parent.driver, parent.driver.tracker
    monkeypatch.setattr(reporter, "LONGEST_S", 0.0)
    for epoch_steps, away in ((0, MAX_STEPS), (3 * MAX_STEPS, 3 * MAX_STEPS)):
        driver.paused()
        tracker.epoch.steps, before = epoch_steps, tracker.steps
        while tracker.steps < before + away:
            tracker.step_made()
        with pytest.raises(ProgramQuitError):
            tracker.step_made()
    for longest_s, comes_back in ((0.0, True), (600.0, False)):
        monkeypatch.setattr(reporter, "LONGEST_S", longest_s)
        driver.paused()
        tracker.epoch.steps = 0
        for _ in range(10 * MAX_STEPS):
            tracker.step_made()
            if comes_back:
                driver.resumed()
