"""Turns within a running program: what they are made of, and what becomes of loaders that rest."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from autotune.inside.seams.forward import ForwardSeam
from autotune.inside.turns import Turns
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.turn import PlannedTurn, Turn
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.rig.wire import TakeTurns
from tests.made import make_profile
from tests.rigging import OpenRig, applied_with, never, open_rig


@dataclass
class ScriptedEdges:
    """A device that does what it was given a while after the program gave it.

    Stands for CUDA events, whose times can be read only after the device has passed them
    (https://pytorch.org/docs/stable/generated/torch.cuda.Event.html).
    """

    now: float = 0.0
    is_settled: bool = False
    marks: list[float] = field(default_factory=list)

    def mark(self) -> int:
        self.marks.append(self.now)
        return len(self.marks) - 1

    def settle(self) -> None:
        self.is_settled = True

    def seconds_between(self, begin: int, end: int) -> float:
        assert self.is_settled, "an event was read that the device has not passed"
        return self.marks[end] - self.marks[begin]


def test_seconds_of_a_switch_belong_to_no_config_and_are_read_after_the_last_turn() -> None:
    edges = ScriptedEdges()
    applied = AppliedConfig.as_written(Config({"batch_size": 8}), make_profile())
    configs = applied, applied_with(applied, batch_size=16)

    def switch(to: AppliedConfig) -> None:
        edges.now += 0.5 if to is configs[1] else 0.25

    schedule = PlannedTurn(0, 2), PlannedTurn(1, 1), PlannedTurn(0, 1)
    turns = Turns(TakeTurns(configs, schedule), switch, edges)
    for samples, seconds in ((8, 1.0), (8, 2.0), (16, 3.0), (8, 4.0)):
        assert not turns.is_done
        if seconds == 4.0:
            turns.disturb()
        edges.now += seconds
        turns.step(samples, wait_s=0.0)

    assert turns.is_done
    assert turns.answer(number=1).turns == (
        Turn(0, (1.0, 2.0), (8, 8), 0.25),
        Turn(1, (3.0,), (16,), 0.5),
        Turn(0, (4.0,), (8,), 0.25, disturbed=(0,)),
    )


def take(opened: OpenRig, configs: Sequence[AppliedConfig], order: Sequence[int]) -> list[Turn]:
    turns = opened.rig.take_turns(configs, [PlannedTurn(n, 2) for n in order], never, 60.0)
    assert not isinstance(turns, Ending), turns
    assert [turn.config for turn in turns] == list(order)
    return list(turns)


def workers(opened: OpenRig) -> list[psutil.Process]:
    assert opened.rig.pid is not None
    return psutil.Process(opened.rig.pid).children()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[OpenRig]:
    with open_rig(tmp_path, "slow_items.py") as opened:
        yield opened


def test_loaders_of_configs_that_rest_stay_and_their_workers_stop(opened: OpenRig) -> None:
    one, two = applied_with(opened.base, num_workers=1), applied_with(opened.base, num_workers=2)
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

    opened.measured()
    assert workers(opened) == [], "a window of the program as written has no workers"


@pytest.mark.parametrize("ends_by", ["close", "kill", "exit"])
def test_no_worker_outlives_the_program_that_stopped_it(tmp_path: Path, ends_by: str) -> None:
    with open_rig(tmp_path, "slow_items.py") as opened:
        take(opened, (opened.base, applied_with(opened.base, num_workers=2)), [1, 0])
        resting = workers(opened)
        assert len(resting) == 2
        assert opened.rig.pid is not None
        if ends_by == "kill":
            os.kill(opened.rig.pid, signal.SIGKILL)
            _, alive = psutil.wait_procs(resting, timeout=5.0)
            assert not alive
        elif ends_by == "exit":
            psutil.Process(opened.rig.pid).send_signal(signal.SIGINT)
            _, alive = psutil.wait_procs(resting, timeout=10.0)
            assert not alive
    _, alive = psutil.wait_procs(resting, timeout=5.0)
    assert not alive


def test_a_program_that_ends_within_a_schedule_says_so(tmp_path: Path) -> None:
    with open_rig(tmp_path, "no_loader.py", "30") as opened:
        schedule = [PlannedTurn(0, 2)] * 1000
        turns = opened.rig.take_turns((opened.base,), schedule, never, 60.0)
        assert not isinstance(turns, Ending)
        assert 0 < len(turns) < 20
        ending = opened.rig.take_turns((opened.base,), schedule, never, 60.0)
    assert isinstance(ending, Ending)
    assert ending.outcome is Outcome.RAN_OUT


def test_the_plain_and_the_compiled_call_of_a_model_stay_side_by_side() -> None:
    seam, model = ForwardSeam(None, list), nn.Linear(2, 2)
    seam.install()
    try:
        model(torch.ones(1, 2))
        seam.narrow()
        calls = []
        for mode in ("default", None, "max-autotune", "default", None):
            seam.compile_in(mode=mode)
            calls.append(vars(model)["_compiled_call_impl"])
    finally:
        seam.remove()

    assert calls[0] is calls[3]
    assert calls[1] is calls[4] is None
    assert len({id(call) for call in calls}) == 3
