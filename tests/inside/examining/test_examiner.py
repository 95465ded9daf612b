"""What the examiner sees of a training loop: each fault, and the same loop without it."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import pytest
import torch
from torch import nn

from autotune.inside.examining import examiner
from autotune.inside.examining.examiner import Examiner
from autotune.inside.examining.operators import OperatorCount
from autotune.measurement.examination import Examination

CORES = tuple(sorted(os.sched_getaffinity(0)))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examiner, "WATCHED_S", 0.2)  # the real time, only less of it


def examined(
    in_step: Callable[[], Any], before_step: Callable[[Examiner], Any] = lambda _: None
) -> Examination:
    """Train until the examiner has seen everything."""
    net = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    found = Examiner("cpu", lambda: None, CORES, counts=True)
    try:
        while not found.is_done:
            before_step(found)
            optimizer.zero_grad()
            net(torch.randn(8, 16)).square().mean().backward()
            optimizer.step()
            in_step()
            found.step(8, 0.0)
    finally:
        found.close()
    return found.found


def test_operators_of_forward_backward_and_optimizer_are_counted() -> None:
    found = examined(lambda: None).operators
    assert found is not None
    assert found.per_step > 10
    assert found.call_s > 0
    weights = torch.randn(4, 4, requires_grad=True)
    with OperatorCount() as forward:
        loss = (torch.randn(2, 4) @ weights).sum()
    with OperatorCount() as backward:
        loss.backward()
    assert forward.calls
    assert backward.calls


def compute() -> None:
    batch = torch.zeros(2, 4)
    for _ in range(500):
        batch = batch + 1


def test_what_the_loader_or_an_evaluation_computes_is_no_part_of_a_step() -> None:
    def load(found: Examiner) -> None:
        if found.clock is not None:
            found.clock.asked()
        compute()
        if found.clock is not None:
            found.clock.leave()

    operators = examined(lambda: None, load).operators
    assert operators is not None
    assert operators.per_step < 100
    steps = 0

    def evaluate(found: Examiner) -> None:
        nonlocal steps
        steps += 1
        if steps % 2:
            found.disturb()
            compute()

    operators = examined(lambda: None, evaluate).operators
    assert operators is not None
    assert operators.per_step < 100


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
