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
from autotune.inside.examining.biased_convs import ConvWatch
from autotune.inside.examining.examiner import Examiner
from autotune.inside.examining.memory import MIN_STEPS, MemoryWatch
from autotune.inside.examining.operators import OperatorCount
from autotune.inside.hubs.backward import BackwardHub
from autotune.measurement.examination import BiasedConvs, Examination

CORES = tuple(sorted(os.sched_getaffinity(0)))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examiner, "WATCHED_S", 0.2)  # the real time, only less of it


def examined(
    after_step: Callable[[torch.Tensor, torch.Tensor], Any], model: nn.Module | None = None
) -> Examination:
    """Train until the examiner has seen everything."""
    net = model or nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    found = Examiner((net,), "cpu", lambda: None, CORES, BackwardHub(), counts=True)
    inputs = torch.randn(8, 1, 4, 4) if model is not None else torch.randn(8, 16)
    try:
        while not found.is_done:
            output = net(inputs)
            loss = output.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            after_step(loss, output)
            found.step(8, 0.0)
    finally:
        found.close()
    return found.found


def test_kept_losses_are_seen_and_kept_numbers_are_not() -> None:
    kept: list[torch.Tensor] = []
    graphs = examined(lambda loss, _: kept.append(loss)).kept_graphs
    assert graphs is not None
    assert graphs.kept == graphs.steps
    assert graphs.where.startswith("test_examiner.py:")

    numbers: list[float] = []
    graphs = examined(lambda loss, _: numbers.append(loss.item())).kept_graphs
    assert graphs is not None
    assert graphs.kept <= 1, "the last step's loss is still a variable"


def test_a_running_sum_of_losses_keeps_all_graphs() -> None:
    total = [torch.zeros(())]

    def add(loss: torch.Tensor, _: torch.Tensor) -> None:
        total[0] = total[0] + loss

    graphs = examined(add).kept_graphs
    assert graphs is not None
    assert graphs.kept == graphs.steps


def test_reads_on_the_host_are_counted_by_line() -> None:
    def read(_: torch.Tensor, output: torch.Tensor) -> None:
        [value.item() for row in output for value in row]

    reads = examined(read).host_reads
    assert reads[0].method == "item"
    assert reads[0].per_step == pytest.approx(32)
    assert reads[0].where.startswith("test_examiner.py:")

    reads = examined(lambda _, output: output.tolist()).host_reads
    assert [(r.method, round(r.per_step)) for r in reads] == [("tolist", 1)]


def test_steps_with_something_else_in_them_do_not_count() -> None:
    net = nn.Linear(4, 4)
    found = Examiner((net,), "cpu", lambda: None, CORES, BackwardHub(), counts=True)
    for number in range(2000):
        loss = net(torch.randn(2, 4)).sum()
        loss.backward()
        if number % 2:
            found.disturb()
            loss.item()
        found.step(2, 0.0)
        if found.is_done:
            break
    found.close()
    assert found.found.host_reads == ()
    assert 0 < found.found.steps < number


def conv(*, bias: bool) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, bias=bias), nn.BatchNorm2d(8), nn.Flatten())


def biased_in(net: nn.Module) -> BiasedConvs | None:
    """Train two steps under the watch that the examiner hangs on modules."""
    watch = ConvWatch([net])
    watch.install()
    for _ in range(2):
        net(torch.randn(8, 1, 4, 4)).square().mean().backward()
    watch.remove()
    return watch.found()


def test_a_bias_before_a_norm_is_found_by_the_tensors_of_a_step() -> None:
    biased = examined(lambda *_: None, conv(bias=True)).biased_convs
    assert biased is not None
    assert (biased.names, biased.layers) == (("0",), 1)
    assert biased.step_s >= 0
    again = biased_in(conv(bias=True))
    assert again is not None
    assert again.names == biased.names
    assert biased_in(conv(bias=False)) is None
    between = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(8), nn.Flatten()
    )
    assert biased_in(between) is None
    in_place = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(inplace=True), nn.BatchNorm2d(8), nn.Flatten()
    )
    assert biased_in(in_place) is None, "the same tensor, changed"
    transposed = nn.Sequential(nn.ConvTranspose2d(1, 8, 3), nn.BatchNorm2d(8), nn.Flatten())
    assert biased_in(transposed) is None
    frozen = nn.Sequential(conv(bias=True))
    frozen[0][1].eval()  # type: ignore[index]
    assert biased_in(frozen) is None, "it subtracts no mean of a batch"


def test_operators_of_forward_backward_and_optimizer_are_counted() -> None:
    found = examined(lambda *_: None).operators
    assert found is not None
    assert found.per_step > 10
    assert found.call_s > 0
    weights = torch.randn(4, 4, requires_grad=True)
    with OperatorCount() as forward:
        loss = (torch.randn(2, 4) @ weights).sum()
    before = forward.calls
    with OperatorCount() as backward:
        loss.backward()
    assert before
    assert backward.calls


def test_growing_memory_is_read_at_equal_distances() -> None:
    hoard: list[bytes] = []
    growth = examined(lambda *_: hoard.append(os.urandom(1 << 18))).growth
    assert growth is not None
    added = [b - a for a, b in pairwise(growth.host_bytes[1:])]
    assert median(added) == pytest.approx(growth.steps * (1 << 18), rel=0.3)


def test_what_the_loader_computes_is_no_part_of_a_step() -> None:
    net = nn.Linear(4, 4)
    found = Examiner((net,), "cpu", lambda: None, CORES, BackwardHub(), counts=True)
    while not found.is_done:
        found.clock.asked()
        batch = torch.zeros(2, 4)
        for _ in range(500):
            batch = batch + 1
        batch.sum().item()
        found.clock.leave()
        net(batch).sum().backward()
        found.step(2, 0.0)
    found.close()
    assert found.found.operators is not None
    assert found.found.operators.per_step < 100
    assert found.found.host_reads == ()


def test_a_reading_that_fails_stays_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ValueError("a defect of autotune")

    monkeypatch.setattr(examiner, "_training_cores", fails)
    seen = examined(lambda *_: None)
    assert seen.affinity is None
    assert seen.operators is not None


def test_a_thread_tied_to_one_core_is_seen() -> None:
    try:
        os.sched_setaffinity(0, CORES[:1])
        affinity = examined(lambda *_: None).affinity
    finally:
        os.sched_setaffinity(0, CORES)
    assert affinity is not None
    assert affinity.main == CORES[:1]
    assert affinity.allowed == CORES


def test_growth_is_known_where_time_ended_before_the_last_stretches() -> None:
    watch = MemoryWatch()
    watch.set_pace(step_s=10.0, seconds=2.0)
    for _ in range(3 * MIN_STEPS + 1):
        watch.step()
    assert watch.found() is None
    for _ in range(MIN_STEPS):
        watch.step()
    found = watch.found()
    assert not watch.is_done
    assert found is not None
    assert len(found.host_bytes) == 5
