"""Where a step's time goes: the clock, the seam that tells it, and the batch for many steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from operator import methodcaller
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import DataLoader, Dataset

from autotune.inside.data.feed import _Cached
from autotune.inside.hubs import Hubs
from autotune.inside.seams import parts
from autotune.inside.seams.forward import ForwardSeam
from autotune.inside.seams.parts import SYNCS, Part, PartsClock, PartsSeam, _moves
from autotune.measurement.step_breakdown import StepParts

PATCHED = (
    (torch.autograd, "backward"),
    (torch.Tensor, "to"),
    (torch.Tensor, "cuda"),
    *((torch.Tensor, name) for name in SYNCS),
    (torch.cuda, "synchronize"),
    (Optimizer, "zero_grad"),
    (nn.Module, "__call__"),
)


class Time:
    """Time that only passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Time:
    passing = Time()
    # The clock times a running program by perf_counter; a test of its arithmetic needs exact times.
    monkeypatch.setattr(parts, "perf_counter", passing)
    return passing


def split_of(clock: PartsClock) -> StepParts:
    split = clock.split()
    assert split is not None
    return split


# --- the clock ------------------------------------------------------------------------------------


def test_each_moment_of_a_step_goes_to_one_part(passing: Time) -> None:
    clock = PartsClock(with_events=False)
    clock.start()
    clock.asked()
    passing.now += 1  # wait
    clock.leave()
    passing.now += 2  # overhead
    clock.enter(Part.TRANSFER)
    passing.now += 4
    clock.leave()
    clock.ground(Part.COMPUTE)
    passing.now += 8
    clock.ground(Part.OPTIMIZER)
    passing.now += 16
    clock.ground(Part.OVERHEAD)
    clock.enter(Part.SYNC)
    passing.now += 32
    clock.leave()
    passing.now += 64  # overhead
    clock.stop(keep=True)
    assert clock.split() == StepParts(
        wait_s=1, transfer_s=4, compute_s=8, optimizer_s=16, sync_s=32, overhead_s=66, steps=1
    )


def test_to_ask_for_the_next_batch_ends_what_the_one_before_was_for(passing: Time) -> None:
    clock = PartsClock(with_events=False)
    clock.start()
    clock.ground(Part.COMPUTE)  # two batches for one optimizer step: no optimizer between them
    passing.now += 1
    clock.asked()
    passing.now += 2
    clock.leave()
    passing.now += 4
    clock.stop(keep=True)
    split = split_of(clock)
    assert (split.compute_s, split.wait_s, split.overhead_s) == (1, 2, 4)


def test_a_disturbed_step_is_not_kept(passing: Time) -> None:
    clock = PartsClock(with_events=False)
    for seconds, keep in ((1, True), (100, False), (3, True)):
        clock.start()
        clock.enter(Part.WAIT)
        passing.now += seconds
        clock.stop(keep=keep)
        clock.leave()
        passing.now += 1000  # between two steps the clock stands still
        clock.ground(Part.COMPUTE)
    assert clock.steps == 2
    assert split_of(clock) == StepParts(2, 0, 0, 0, 0, 0, steps=2)


# --- the seam, on a real loop ---------------------------------------------------------------------


class Slow(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that take a moment to load."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._labels = torch.arange(8) % 2

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self._seconds)
        return torch.ones(256), self._labels[place]


@contextmanager
def taken_apart() -> Iterator[PartsClock]:
    """A clock that is told about the parts of the steps of models."""
    clock = PartsClock(with_events=False)
    hubs = Hubs()
    forward = ForwardSeam(None, list)
    forward.install()
    seam = PartsSeam(clock, forward, hubs)
    seam.install()
    try:
        yield clock
    finally:
        seam.remove()
        hubs.remove()
        forward.remove()


def patched() -> list[Any]:
    return [vars(owner).get(name) for owner, name in PATCHED]


@pytest.mark.parametrize("width", [2, 3], ids=["all goes well", "the model fails"])
def test_a_removed_seam_leaves_no_trace(width: int) -> None:
    before = patched()
    model = nn.Linear(2, 1)
    with suppress(RuntimeError), taken_apart():
        assert all(a is not b for a, b in zip(before, patched(), strict=True))
        model(torch.ones(1, width)).sum().backward()
    assert all(a is b for a, b in zip(before, patched(), strict=True))
    assert float(torch.tensor(2.5)) == 2.5
    assert bool(torch.tensor(1))


def heavy_loop(clock: PartsClock, model: nn.Module, optimizer: Optimizer, steps: int) -> float:
    """Steps with work in each part; returns their wall time."""
    batches = iter(DataLoader(Slow(0.002), batch_size=4))
    began = time.perf_counter()
    for _ in range(steps):
        clock.start()
        clock.asked()
        inputs, labels = next(batches)
        clock.leave()
        for _ in range(300):
            inputs.to("meta")
        time.sleep(0.004)  # the program's own Python
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for _ in range(2000):
            loss.item()
        clock.stop(keep=True)
    return time.perf_counter() - began


def test_on_a_real_loop_each_part_gets_its_time_and_together_they_are_the_step() -> None:
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))
    optimizer = Adam(model.parameters())
    with taken_apart() as clock:
        wall_s = heavy_loop(clock, model, optimizer, steps=2)
    split = split_of(clock)
    assert split.steps == 2
    assert split.step_s * split.steps <= wall_s, "no time is counted twice"
    assert split.wait_s >= 4 * 0.002
    assert split.overhead_s >= 0.004
    assert split.launch_s is None
    assert split.sync_s == 0, "nothing waits for the CPU"
    assert min(s for name, s in split.parts.items() if name != "sync calls") > 0.00005, split


def at_each_call(clock: PartsClock, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record what the clock is told from here on."""
    told: list[str] = []

    def record(name: str, original: Any) -> Any:
        def tell(*part: Part) -> None:
            told.append(" ".join([name, *part]))
            original(*part)

        return tell

    for name in ("ground", "enter", "leave"):
        # What is said matters here, beyond the times that it leads to.
        monkeypatch.setattr(clock, name, record(name, getattr(clock, name)))
    return told


def test_a_training_step_is_told_from_the_models_call_to_the_optimizers_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    with taken_apart() as clock:
        told = at_each_call(clock, monkeypatch)
        loss = model(torch.ones(1, 2)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
    assert told == [
        "ground compute",
        "ground compute",
        "ground optimizer",
        "ground optimizer",
        "ground overhead",
        "enter optimizer",
        "leave",
    ]


def test_a_model_that_is_called_without_gradients_computes_for_the_call_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Linear(2, 1)
    with taken_apart() as clock:
        told = at_each_call(clock, monkeypatch)
        with torch.no_grad():
            model(torch.ones(1, 2))
        with torch.no_grad(), pytest.raises(RuntimeError):
            model(torch.ones(1, 3))
    assert told == ["enter compute", "leave"] * 2


@pytest.mark.parametrize(
    "read",
    [float, int, bool, "ab".__getitem__, *map(methodcaller, ("item", "tolist", "cpu", "numpy"))],
    ids=["float", "int", "bool", "index", "item", "tolist", "cpu", "numpy"],
)
def test_reading_a_tensor_from_a_device_is_a_sync_call(
    read: Callable[[torch.Tensor], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    with taken_apart() as clock:
        told = at_each_call(clock, monkeypatch)
        read(torch.tensor(1))
        assert told == [], "nothing waits for the CPU"
        with suppress(RuntimeError, NotImplementedError, TypeError):  # nothing is there to be read
            read(torch.tensor(1, device="meta"))
    assert told[0] == "enter sync"
    assert told.count("enter sync") == told.count("leave") == len(told) / 2


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "moves"),
    [
        ("to", ("cuda",), {}, True),
        ("to", (), {"device": "cuda"}, True),
        ("to", (torch.empty(0, device="meta"),), {}, True),
        ("to", ("cpu",), {}, False),
        ("to", (torch.device("cpu"),), {}, False),
        ("to", (torch.float16,), {}, False),
        ("to", (), {"dtype": torch.float16}, False),
        ("to", (), {"device": None}, False),
        ("to", (), {"other": torch.empty(0, device="meta")}, True),
    ],
)
def test_a_move_is_told_by_what_the_tensor_is_taken_to(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], moves: bool
) -> None:
    assert _moves(name, torch.ones(1), *args, **kwargs) is moves


# --- one batch for many steps ---------------------------------------------------------------------


def nested() -> dict[str, Any]:
    return {"x": torch.ones(2, 3), "more": [torch.zeros(2), (torch.arange(2), "name")]}


@pytest.mark.parametrize(
    "change",
    [
        lambda batch: batch["x"].mul_(7),
        lambda batch: batch["more"][0].add_(1),
        lambda batch: batch["more"][1][0].fill_(9),
        lambda batch: batch["x"].__setitem__(0, 5.0),
        lambda batch: batch["x"].requires_grad_().detach().zero_(),
        lambda batch: batch.pop("x"),
        lambda batch: batch["more"].clear(),
        lambda batch: batch.update(x=batch["x"] * 2),
    ],
    ids=["mapping", "list", "tuple in a list", "item", "detached", "popped", "cleared", "set"],
)
def test_a_batch_changed_in_place_is_handed_out_pristine_again(change: Any) -> None:
    cached = _Cached(nested(), 2)
    for _ in range(3):
        batch = cached.batch()
        assert torch.equal(batch["x"], torch.ones(2, 3))
        assert torch.equal(batch["more"][0], torch.zeros(2))
        assert torch.equal(batch["more"][1][0], torch.arange(2))
        assert batch["more"][1][1] == "name"
        change(batch)
