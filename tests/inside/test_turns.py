"""Turns within a running program: what they are made of, and what becomes of loaders that rest."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
import torch

from autotune.inside import turns as turns_module
from autotune.inside.turns import Edges, Hands, Turns, of_ranks
from autotune.machine.hardware import Gpu
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.turn import PlannedTurn, Turn
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.rig.wire import TakeTurns
from tests.gpu_fakes import FakeCuda, unused
from tests.made import A100, H100, make_profile
from tests.rigging import OpenRig, applied_with, never, open_rig

APPLIED = AppliedConfig.as_written(Config({"batch_size": 8}), make_profile())
CONFIGS = APPLIED, applied_with(APPLIED, batch_size=16)


@dataclass
class Program:
    """What turns see of a program on the CPU, or on two GPUs of which the second is slower."""

    monkeypatch: pytest.MonkeyPatch
    gpus: tuple[Gpu, ...] = ()
    now_s: float = 0.0
    loss: torch.Tensor | None = None
    activity: int = 0

    def __post_init__(self) -> None:
        self.cuda = FakeCuda(self.monkeypatch, *self.gpus)
        # Times are those of the script
        self.monkeypatch.setattr(turns_module, "perf_counter", lambda: self.now_s)

    def turns(self, *schedule: PlannedTurn) -> Turns:
        hands = Hands(self.switch, lambda: self.loss, lambda: self.activity)
        devices = [torch.device("cuda", number) for number in range(len(self.gpus))]
        return Turns(TakeTurns(CONFIGS, schedule), hands, Edges(devices))

    def switch(self, to: AppliedConfig) -> None:
        self.work(0.5 if to is CONFIGS[1] else 0.25)

    def work(self, seconds: float) -> None:
        self.now_s += seconds
        self.cuda.work(*(seconds / 2, seconds)[: len(self.gpus)])


def test_seconds_of_a_switch_belong_to_no_config_and_are_read_after_the_last_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = Program(monkeypatch)
    turns = program.turns(PlannedTurn(0, 2), PlannedTurn(1, 1), PlannedTurn(0, 1))
    for samples, seconds in ((8, 1.0), (8, 2.0), (16, 3.0), (8, 4.0)):
        assert not turns.is_done
        if seconds == 4.0:
            turns.disturb()
        program.work(seconds)
        turns.step(samples, wait_s=0.1, tokens=5)

    assert turns.is_done
    assert tuple(replace(turn, faults=()) for turn in turns.told()) == (
        Turn(0, (1.0, 2.0), (8, 8), 0.25, wait_s=0.2, tokens=10),
        Turn(1, (3.0,), (16,), 0.5, wait_s=0.1, tokens=5),
        Turn(0, (4.0,), (8,), 0.25, (0,), wait_s=0.1, tokens=5),
    )


def test_the_first_step_after_an_answer_is_not_timed_where_the_program_runs_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer waited for the devices, so nothing overlaps with that step."""
    program = Program(monkeypatch, (A100, H100))
    turns = program.turns(PlannedTurn(0, 2))
    assert program.now_s == 0.25, "it is a step of the config whose turn begins"
    turns.disturb()
    for seconds in (9.0, 1.0, 2.0):
        assert not turns.is_done
        program.work(seconds)
        turns.step(8, 0.0)
    assert program.cuda.waited_s == [0.0, 0.0], "nothing waits for a device between two steps"
    (turn,) = turns.told()
    assert (turn.seconds, turn.disturbed) == ((1.0, 2.0), ())


def test_a_program_on_another_gpu_is_timed_there_and_the_first_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = FakeCuda(monkeypatch, unused(A100), H100)
    edges = Edges([torch.device("cuda", 1)])
    begin = edges.mark()
    cuda.work(0.0, 3.0)
    end = edges.mark()
    edges.settle()
    assert edges.seconds_between(begin, end) == 3.0
    assert cuda.waited_s == [0.0, 3.0]


def test_each_turn_has_the_loss_of_its_last_step_and_is_quiet_unless_something_was_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = Program(monkeypatch)
    turns = program.turns(PlannedTurn(0, 2), PlannedTurn(1, 2), PlannedTurn(0, 2))
    for step, loss in enumerate((3.0, 2.0, 9.0, float("nan"), None, 1.0)):
        program.loss = None if loss is None else torch.tensor(loss)
        program.activity += step == 2
        turns.step(8, 0.0)
    told = turns.told()
    assert [turn.loss for turn in told] == [2.0, pytest.approx(float("nan"), nan_ok=True), 1.0]
    assert [turn.is_finite for turn in told] == [True, False, True]
    assert [turn.is_quiet for turn in told] == [True, False, True]


def test_an_epoch_that_ends_disturbs_its_step_and_a_turn_that_is_not_whole_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = Program(monkeypatch).turns(PlannedTurn(0, 2), PlannedTurn(1, 2))
    turns.step(8, 0.0)
    turns.resume()
    turns.step(8, 0.0)
    turns.step(16, 0.0)
    turns.close()
    (whole,) = turns.told()
    assert (whole.config, whole.disturbed) == (0, (1,))


def test_a_group_of_ranks_is_as_slow_as_its_slowest_in_each_step_and_has_the_samples_of_all() -> (
    None
):
    first = Turn(0, (1.0, 2.0), (8, 8), 0.5, (0,), tokens=16, loss=2.0)
    other = Turn(0, (1.5, 0.5), (8, 4), 0.7, (1,), tokens=12, is_quiet=False)
    last = Turn(1, (1.0,), (8,), 0.1)
    assert of_ranks([[first, last], [other, last]]) == (
        Turn(0, (1.5, 2.0), (16, 12), 0.5, (0, 1), tokens=28, loss=2.0, is_quiet=False),
        Turn(1, (1.0,), (16,), 0.1),
    )


def take(opened: OpenRig, configs: Sequence[AppliedConfig], order: Sequence[int]) -> Sequence[Turn]:
    taken = opened.rig.take_turns(configs, [PlannedTurn(n, 2) for n in order], never, 60.0)
    assert not isinstance(taken, Ending), taken
    assert [turn.config for turn in taken.turns] == list(order)
    return taken.turns


def workers(opened: OpenRig) -> list[psutil.Process]:
    assert opened.rig.pid is not None
    return psutil.Process(opened.rig.pid).children()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[OpenRig]:
    with open_rig(tmp_path, "slow_items.py") as opened:
        yield opened


def test_loaders_of_configs_that_rest_stay_and_their_workers_stop(opened: OpenRig) -> None:
    one, two = applied_with(opened.base, workers=1), applied_with(opened.base, workers=2)
    larger = applied_with(opened.base, batch_size=32)
    configs = opened.base, one, two, larger

    turns = take(opened, configs, [*range(4), *random.sample(range(4), 4), 1])

    own = opened.profile.loaders[0].batch_size
    assert {turn.samples for turn in turns if turn.config == 3} == {(32, 32)}
    assert {turn.samples for turn in turns if turn.config != 3} == {(own, own)}
    states = [process.status() for process in workers(opened)]
    assert len(states) == 3
    assert states.count(psutil.STATUS_STOPPED) == 2, "those of the config with two workers"
    took_part = {process.pid for process in workers(opened)}
    take(opened, configs, [2, 1, 0])
    assert {process.pid for process in workers(opened)} == took_part, "none started anew"


@pytest.mark.parametrize("ends_by", ["kill", "exit"])
def test_no_worker_outlives_the_program_that_stopped_it(tmp_path: Path, ends_by: str) -> None:
    with open_rig(tmp_path, "slow_items.py") as opened:
        take(opened, (opened.base, applied_with(opened.base, workers=2)), [1, 0])
        resting = workers(opened)
        assert len(resting) == 2
        assert opened.rig.pid is not None
        if ends_by == "kill":
            os.kill(opened.rig.pid, signal.SIGKILL)
            _, alive = psutil.wait_procs(resting, timeout=5.0)
            assert not alive
        elif ends_by == "exit":
            psutil.Process(opened.rig.pid).send_signal(signal.SIGINT)
            _, alive = psutil.wait_procs(resting, timeout=30.0)
            assert not alive
    _, alive = psutil.wait_procs(resting, timeout=5.0)
    assert not alive


def test_a_program_that_ends_within_a_schedule_gives_its_whole_turns_then_says_so(
    tmp_path: Path,
) -> None:
    with open_rig(tmp_path, "no_loader.py", "30") as opened:
        schedule = [PlannedTurn(0, 2)] * 1000
        taken = opened.rig.take_turns((opened.base,), schedule, never, 60.0)
        assert not isinstance(taken, Ending)
        assert 0 < len(taken.turns) < 20
        assert {len(turn.seconds) for turn in taken.turns} == {2}
        ending = opened.rig.take_turns((opened.base,), schedule, never, 60.0)
    assert isinstance(ending, Ending)
    assert (ending.outcome, ending.reason) == (Outcome.RAN_OUT, "the program ended after 30 steps")
