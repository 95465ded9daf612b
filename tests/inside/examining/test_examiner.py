"""What the examiner sees of a training loop: each fault, and the same loop without it."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count, pairwise
from statistics import median
from typing import Any

import pytest
import torch
from torch import nn

from autotune.inside.examining import examiner
from autotune.inside.examining.examiner import Examiner
from autotune.inside.examining.operators import OperatorCount, call_s
from autotune.inside.seam_set import SeamSet
from autotune.inside.step_profiler import StepProfiler
from autotune.inside.turns import Edges
from autotune.measurement.examination import Examination

CORES = tuple(sorted(os.sched_getaffinity(0)))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examiner, "WATCHED_S", 0.2)  # the real time, only less of it


def examined(in_step: Callable[[], Any]) -> Examination:
    """Train until the examiner has seen everything."""
    found = Examiner(lambda: None, CORES)
    train(found, in_step)
    return found.found


def train(task: Examiner | StepProfiler, *in_step: Callable[[], Any]) -> None:
    """Train until a task is done; the functions are called after each step of the optimizer."""
    net = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    try:
        while not task.is_done:
            optimizer.zero_grad()
            net(torch.randn(8, 16)).square().mean().backward()
            optimizer.step()
            for each in in_step:
                each()
            task.step(8, 0.0)
    finally:
        task.close()


def test_operators_of_forward_backward_and_optimizer_are_counted_and_timed() -> None:
    weights = torch.randn(4, 4, requires_grad=True)
    with OperatorCount() as forward:
        loss = (torch.randn(2, 4) @ weights).sum()
    with OperatorCount() as backward:
        loss.backward()
    assert forward.calls
    assert backward.calls
    before = torch.get_rng_state()
    assert 1e-7 < call_s("cpu") < 1e-3
    assert torch.equal(torch.get_rng_state(), before), "the program's random numbers stay"


def compute() -> None:
    batch = torch.zeros(2, 4)
    for _ in range(500):
        batch = batch + 1


def test_what_the_loader_or_an_evaluation_computes_is_no_part_of_a_step() -> None:
    def profiler() -> StepProfiler:
        return StepProfiler(0.0, "cpu", Edges([]), SeamSet(None, None), lambda: None, is_eager=True)

    loads, steps = profiler(), count()

    def load() -> None:
        if loads.clock is not None:
            loads.clock.asked()
            compute()
            loads.clock.leave()

    evaluates = profiler()

    def evaluate() -> None:
        if next(steps) % 2:
            evaluates.disturb()
            compute()

    for found, in_step in ((loads, load), (evaluates, evaluate)):
        train(found, in_step)
        operators = found.breakdown.operators
        assert operators is not None
        assert 10 < operators.per_step < 100
        assert operators.call_s > 0
        assert operators.call_while_loading_s is None, "there is no loader"


def test_growing_memory_is_read_at_equal_distances() -> None:
    hoard: list[bytes] = []
    growth = examined(lambda: hoard.append(os.urandom(1 << 18))).growth
    assert growth is not None
    added = [b - a for a, b in pairwise(growth.host_bytes[1:])]
    assert median(added) == pytest.approx(growth.steps * (1 << 18), rel=0.3)


def test_a_thread_tied_to_one_core_is_seen() -> None:
    try:
        os.sched_setaffinity(0, CORES[:1])
        affinity = examined(lambda: None).affinity
    finally:
        os.sched_setaffinity(0, CORES)
    assert affinity is not None
    assert affinity.main == CORES[:1]
    assert affinity.allowed == CORES
