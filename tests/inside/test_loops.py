"""Loops that do more than clear, compute and step: four micro-batches of eight are one batch of 32.

Each program is written for batches of 32. It is run as it is, and under batch_size=8 with
accumulation_steps=4, over the same samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, lr_scheduler
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tests.inside.test_accumulation import accumulating

ONE_BY_ONE = "SequentialSampler"
Parameters = list[torch.Tensor]


def made(samples: int = 96, nan_at: int | None = None) -> TensorDataset:
    torch.manual_seed(0)
    x = torch.randn(samples, 6)
    y = x.sum(1, keepdim=True).sin()
    if nan_at is not None:
        x[nan_at] = float("nan")
    return TensorDataset(x, y)


def model_of() -> tuple[nn.Module, SGD]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def values(parameters: Any) -> Parameters:
    return [p.detach().clone() for p in parameters]


def assert_same(whole: Parameters, parts: Parameters, *, say: str = "") -> None:
    for own, other in zip(whole, parts, strict=True):
        assert own.isfinite().all(), say
        torch.testing.assert_close(own, other, rtol=1e-4, atol=4e-6, msg=lambda text: say + text)


def leaves_out(kind: str, *, clears_first: bool) -> Parameters:
    """Train over data of which one sample is NaN."""
    loader = DataLoader(made(nan_at=45), batch_size=32)
    model, optimizer = model_of()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=kind == "by a scaler")
    for _ in range(3):
        for x, y in loader:
            if clears_first:
                optimizer.zero_grad()
            loss = loss_of(model, x, y)
            if kind == "before backward" and not loss.isfinite():
                optimizer.zero_grad()
                continue
            if kind == "without clearing" and not loss.isfinite():
                continue
            scaler.scale(loss).backward()
            if kind == "after backward" and not loss.isfinite():
                optimizer.zero_grad()
                continue
            scaler.step(optimizer)
            scaler.update()
            if not clears_first:
                optimizer.zero_grad()
    return values(model.parameters())


@pytest.mark.parametrize(
    "kind", ["before backward", "after backward", "without clearing", "by a scaler"]
)
def test_a_group_with_a_loss_that_is_not_finite_is_left_out_as_a_batch_is(kind: str) -> None:
    for clears_first in (True, False):
        whole = leaves_out(kind, clears_first=clears_first)
        with accumulating(96, sampler=ONE_BY_ONE):
            parts = leaves_out(kind, clears_first=clears_first)
        assert_same(whole, parts, say=f"{kind}, {clears_first=}: ")


class Stream(IterableDataset[Any]):
    """A part of the samples each time, and no length."""

    def __init__(self, parts: int) -> None:
        self.parts, self.begun = parts, 0

    def __iter__(self) -> Iterator[Any]:
        data, size = made(160), 160 // self.parts
        first = self.begun * size
        self.begun += 1
        return iter([data[i] for i in range(first, first + size)])


def test_groups_of_a_stream_go_on_across_its_epochs() -> None:
    def streams(parts: int) -> Parameters:
        loader = DataLoader(Stream(parts), batch_size=32)
        model, optimizer = model_of()
        schedule = lr_scheduler.ExponentialLR(optimizer, 0.5)
        for _ in range(parts):
            for x, y in loader:
                optimizer.zero_grad()
                loss_of(model, x, y).backward()
                optimizer.step()
            if parts == 1:  # else once in an epoch, of which there are more
                continue
            schedule.step()
            schedule.base_lrs = [0.05]
            optimizer.param_groups[0]["lr"] = 0.05
        assert parts in {1, schedule.last_epoch}, "a schedule of epochs is not held back"
        return values(model.parameters())

    whole = streams(1)
    with accumulating(None, dataset="Stream", iterable=True, sampler="_InfiniteConstantSampler"):
        parts = streams(4)
    assert_same(whole, parts)


def test_a_loop_that_is_left_early_hands_nothing_on_to_what_follows() -> None:
    def leaves(after: int) -> Parameters:
        loader = DataLoader(made(), batch_size=32)
        second = DataLoader(made(24), batch_size=12)
        model, optimizer = model_of()
        schedule = lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for data, most in ((loader, after), (loader, after), (second, 10**6)):
            for number, (x, y) in enumerate(data):
                if number == most:
                    break
                loss_of(model, x, y).backward()
                optimizer.step()
                optimizer.zero_grad()
            schedule.step()
        return [*values(model.parameters()), torch.tensor(optimizer.param_groups[0]["lr"])]

    whole = leaves(2)
    with accumulating(96, sampler=ONE_BY_ONE):
        parts = leaves(2 * 4 + 3)
    assert_same(whole, parts)


def test_a_loader_has_the_length_of_its_iteration() -> None:
    def counts() -> tuple[Parameters, float]:
        loader = DataLoader(made(), batch_size=32)
        model, optimizer = model_of()
        batches, total = iter(loader), 0.0
        for _ in range(len(loader)):
            x, y = next(batches)
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        assert next(batches, None) is None, "all of the data was trained on"
        return values(model.parameters()), total / len(loader)

    whole, mean = counts()
    with accumulating(96, sampler=ONE_BY_ONE):
        parts, other = counts()
    assert_same(whole, parts)
    assert other == pytest.approx(mean, rel=1e-5), "mean loss, over the same samples and weights"
