"""Where a step's time goes: the clock, the seam that tells it, and the batch for many steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from operator import methodcaller
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from autotune.inside.data.feed import _Cached
from autotune.inside.hubs import Hubs
from autotune.inside.seams import parts
from autotune.inside.seams.forward import ForwardSeam
from autotune.inside.seams.parts import SYNCS, Part, PartsClock, PartsSeam
from autotune.inside.turns import Edges
from autotune.measurement.examination import StepParts
from tests.gpu_fakes import FakeCuda
from tests.made import A100, H100
from tests.watching import installed

PATCHED = (
    (torch.autograd, "backward"),
    (torch.Tensor, "to"),
    (torch.Tensor, "cuda"),
    *((torch.Tensor, name) for name in SYNCS),
    (torch.cuda, "synchronize"),
    (Optimizer, "zero_grad"),
    (nn.Module, "__call__"),
)


def test_each_moment_of_a_step_goes_to_one_part_and_a_disturbed_step_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    # The clock times a running program by perf_counter; a test of its arithmetic needs exact times.
    monkeypatch.setattr(parts, "perf_counter", lambda: now)
    clock = PartsClock(Edges(()))
    for keep in (True, False):
        clock.start()
        for seconds, tell in (
            (0, clock.asked),
            (1, clock.leave),  # it waited
            (2, lambda: clock.enter(Part.TRANSFER)),
            (4, clock.leave),
            (0, lambda: clock.ground(Part.COMPUTE)),
            (8, clock.asked),  # a second batch for the step ends what the first was for
            (16, clock.leave),
            (0, lambda: clock.ground(Part.OPTIMIZER)),
            (32, lambda: clock.ground(Part.OVERHEAD)),
            (0, lambda: clock.enter(Part.SYNC)),
            (64, clock.leave),
            (128, lambda: clock.stop(keep=keep)),  # noqa: B023 - called at once
            (1000, clock.leave),  # between two steps the clock stands still
        ):
            now += seconds
            tell()
    assert clock.steps == 1
    assert clock.split() == StepParts(
        wait_s=17, transfer_s=4, compute_s=8, optimizer_s=32, sync_s=64, overhead_s=130, steps=1
    )


def test_beside_gpus_the_slowest_ones_time_counts_and_the_hosts_is_what_launching_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = FakeCuda(monkeypatch, A100, H100)
    clock = PartsClock(Edges([torch.device("cuda", 0), torch.device("cuda", 1)]))
    clock.start()
    for seconds, part in ((1, Part.COMPUTE), (8, Part.OPTIMIZER), (4, Part.OVERHEAD)):
        cuda.work(seconds, seconds / 2)
        clock.ground(part)
    cuda.work(1, 2)
    clock.stop(keep=True)
    split = clock.split()
    assert split is not None
    assert (split.compute_s, split.optimizer_s, split.overhead_s) == (8, 4, 3)
    assert split.launch_s is not None
    assert split.launch_s < 1


@contextmanager
def taken_apart() -> Iterator[PartsClock]:
    """A clock that is told about the parts of the steps of models."""
    clock, hubs = PartsClock(Edges(())), Hubs()
    with installed(ForwardSeam(None, list)) as forward:
        try:
            with installed(PartsSeam(clock, forward, hubs)):
                yield clock
        finally:
            hubs.remove()


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
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        step = told.copy()
        told.clear()
        with torch.no_grad():
            model(torch.ones(1, 2))
        with torch.no_grad(), pytest.raises(RuntimeError):
            model(torch.ones(1, 3))
    assert told == ["enter compute", "leave"] * 2, "without gradients, the call alone"
    compute, optimize = ["ground compute"] * 2, ["ground optimizer"] * 2
    assert step == [*compute, *optimize, "ground overhead", "enter optimizer", "leave"]


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


def test_a_batch_changed_in_place_is_handed_out_pristine_again() -> None:
    changes: tuple[Callable[[Any], object], ...] = (
        lambda batch: batch["x"].mul_(7),
        lambda batch: batch["more"][0].add_(1),
        lambda batch: batch["more"][1][0].fill_(9),
        lambda batch: batch["x"].__setitem__(0, 5.0),
        lambda batch: batch["x"].requires_grad_().detach().zero_(),
        lambda batch: batch.pop("x"),
        lambda batch: batch["more"].clear(),
        lambda batch: batch.update(x=batch["x"] * 2),
    )
    more = [torch.zeros(2), (torch.arange(2), "name")]
    cached = _Cached({"x": torch.ones(2, 3), "more": more}, 2)
    for change in (*changes, *changes):
        batch = cached.batch()
        assert torch.equal(batch["x"], torch.ones(2, 3))
        assert torch.equal(batch["more"][0], torch.zeros(2))
        assert torch.equal(batch["more"][1][0], torch.arange(2))
        assert batch["more"][1][1] == "name"
        change(batch)
