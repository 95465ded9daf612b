"""Gradient accumulation: four micro-batches of eight are one batch of 32, to the parameter.

Each program is written for batches of 32. It is run as it is, and under batch_size=8 with
accumulation_steps=4, over the same samples.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer, lr_scheduler
from torch.utils.checkpoint import checkpoint_sequential
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from autotune.inside.seam_set import SeamSet
from autotune.program.applied_config import AppliedConfig, ProgramTraits
from autotune.program.config import Config
from autotune.program.lr import LrRule
from tests.made import make_loader
from tests.watching import running

ONE_BY_ONE = "SequentialSampler"
Parameters = list[torch.Tensor]
Step = Callable[[torch.Tensor, torch.Tensor], None]


def made(samples: int = 96, nan_at: int | None = None) -> TensorDataset:
    torch.manual_seed(0)
    x = torch.randn(samples, 6)
    y = x.sum(1, keepdim=True).sin()
    if nan_at is not None:
        x[nan_at] = float("nan")
    return TensorDataset(x, y)


class Program:
    """A model in training; what it ends with besides its weights are losses, norms and a rate."""

    def __init__(self, kind: type[Optimizer] = SGD) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
        make: Any = partial(SGD, momentum=0.9, weight_decay=1e-3) if kind is SGD else kind
        self.optimizer = make(self.model.parameters(), lr=0.05)
        self.scaler = torch.amp.GradScaler("cpu")
        self.losses, self.norms = list[float](), list[float]()

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.mse_loss(self.model(x), y)
        self.losses.append(loss.item())
        return loss

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.loss(x, y).backward()
        self.optimizer.step()

    def ends_with(self) -> Parameters:
        rate = torch.tensor(self.optimizer.param_groups[0]["lr"])
        return [*(p.detach().clone() for p in self.model.parameters()), rate]


def accumulating(samples: int | None, **loader: Any) -> AbstractContextManager[SeamSet]:
    """The seams of ``autotune run`` under batches of 8 and four for a step."""
    facts = make_loader(**{"dataset_len": samples, "batch_size": 32, **loader})
    baseline = Config({"batch_size": 32, "accumulation_steps": 1})
    config = Config({"batch_size": 8, "accumulation_steps": 4})
    return running(AppliedConfig(config, baseline, ProgramTraits("cpu", facts), LrRule.LINEAR))


def assert_same(whole: Parameters, parts: Parameters, *, say: str = "") -> None:
    for own, other in zip(whole, parts, strict=True):
        assert own.isfinite().all(), say
        torch.testing.assert_close(own, other, rtol=1e-4, atol=4e-6, msg=lambda text: say + text)


def clears_last(program: Program, x: torch.Tensor, y: torch.Tensor) -> None:
    program.loss(x, y).backward()
    program.optimizer.step()
    program.optimizer.zero_grad()


def clears_the_model_to_zeros(program: Program, x: torch.Tensor, y: torch.Tensor) -> None:
    program.model.zero_grad(set_to_none=False)
    program.loss(x, y).backward()
    program.optimizer.step()


def computes_activations_again(program: Program, x: torch.Tensor, y: torch.Tensor) -> None:
    """By backward passes within the backward pass."""
    program.optimizer.zero_grad()
    output = checkpoint_sequential(program.model, 3, x.requires_grad_(), use_reentrant=True)
    loss = nn.functional.mse_loss(output, y)
    program.losses.append(loss.item())
    loss.backward()
    program.optimizer.step()


def scales_and_clips(program: Program, x: torch.Tensor, y: torch.Tensor) -> None:
    program.optimizer.zero_grad()
    program.scaler.scale(program.loss(x, y)).backward()
    program.scaler.unscale_(program.optimizer)
    program.norms.append(float(nn.utils.clip_grad_norm_(program.model.parameters(), 0.1)))
    program.scaler.step(program.optimizer)
    program.scaler.update()


def has_a_schedule_of_iterations(program: Program) -> Step:
    schedule = lr_scheduler.LinearLR(program.optimizer, 1.0, 0.1, total_iters=20)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        program.step(x, y)
        schedule.step()

    return step


class Wrapper(Optimizer):
    """Wraps an optimizer without setting up a part of its own, as timm's Lookahead does."""

    def __init__(self, base: Optimizer) -> None:
        self.base, self.param_groups, self.defaults = base, base.param_groups, base.defaults
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = (
            OrderedDict(),
            OrderedDict(),
        )

    def step(self, closure: Any = None) -> Any:
        return self.base.step(closure)


def clears_by_what_wraps_the_optimizer_and_a_model_that_nobody_trains(program: Program) -> Step:
    wrapper, idle = Wrapper(program.optimizer), nn.Linear(2, 2)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        wrapper.zero_grad()
        program.loss(x, y).backward()
        idle.zero_grad()
        wrapper.step()

    return step


def scales_for_what_wraps_the_optimizer(program: Program, *, clears_model: bool = False) -> Step:
    wrapper, scaler = Wrapper(program.optimizer), torch.amp.GradScaler("cpu", init_scale=1024.0)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        (program.model if clears_model else wrapper).zero_grad()
        scaler.scale(program.loss(x, y)).backward()
        scaler.step(wrapper)
        scaler.update()

    return step


CASES: dict[str, tuple[Callable[[Program], Step], int]] = {
    "a plain loop": (lambda program: program.step, 90),
    "a plain loop with AdamW": (lambda program: program.step, 90),
    "scales and clips with AdamW": (partial(partial, scales_and_clips), 96),
    "clears last": (partial(partial, clears_last), 90),
    "clears the model to zeros": (partial(partial, clears_the_model_to_zeros), 90),
    "computes activations again": (partial(partial, computes_activations_again), 90),
    "scales and clips": (partial(partial, scales_and_clips), 96),
    # Of 90, micro-batches would keep samples that whole batches drop.
    "the last batch dropped": (lambda program: program.step, 96),
    "a last group of one micro-batch": (lambda program: program.step, 100),
    **{
        step.__name__.replace("_", " "): (step, 90)
        for step in (
            clears_by_what_wraps_the_optimizer_and_a_model_that_nobody_trains,
            scales_for_what_wraps_the_optimizer,
            has_a_schedule_of_iterations,
        )
    },
    "scales for what wraps the optimizer and clears the model": (
        partial(scales_for_what_wraps_the_optimizer, clears_model=True),
        90,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_accumulated_micro_batches_are_one_batch(case: str) -> None:
    make_step, samples = CASES[case]
    drop_last, kind = "dropped" in case, AdamW if "AdamW" in case else SGD

    def trained() -> Program:
        loader = DataLoader(made(samples), batch_size=32, shuffle=True, drop_last=drop_last)
        program = Program(kind)
        step = make_step(program)
        schedule = lr_scheduler.StepLR(program.optimizer, 2, gamma=0.5)
        for _ in range(7):
            for x, y in loader:
                step(x, y)
            if "iterations" not in case:
                schedule.step()
        return program

    whole = trained()
    with accumulating(samples, drop_last=drop_last):
        parts = trained()
    assert len(parts.losses) > 3 * len(whole.losses), "each micro-batch is logged"
    assert_same(whole.ends_with(), parts.ends_with())
    assert parts.norms[3::4] == pytest.approx(whole.norms, rel=1e-3), "a group ends with its norm"


@pytest.mark.parametrize(
    "kind", ["before backward", "after backward", "without clearing", "by a scaler"]
)
def test_a_group_with_a_loss_that_is_not_finite_is_left_out_as_a_batch_is(kind: str) -> None:
    def leaves_out(*, clears_first: bool) -> Parameters:
        program, loader = Program(), DataLoader(made(nan_at=45), batch_size=32)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=kind == "by a scaler")
        for x, y in (batch for _ in range(3) for batch in loader):
            if clears_first:
                program.optimizer.zero_grad()
            loss = program.loss(x, y)
            if kind == "before backward" and not loss.isfinite():
                program.optimizer.zero_grad()
                continue
            if kind == "without clearing" and not loss.isfinite():
                continue
            scaler.scale(loss).backward()
            if kind == "after backward" and not loss.isfinite():
                program.optimizer.zero_grad()
                continue
            scaler.step(program.optimizer)
            scaler.update()
            if not clears_first:
                program.optimizer.zero_grad()
        return program.ends_with()

    for clears_first in (True, False):
        whole = leaves_out(clears_first=clears_first)
        with accumulating(96, sampler=ONE_BY_ONE):
            parts = leaves_out(clears_first=clears_first)
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
        loader, program = DataLoader(Stream(parts), batch_size=32), Program()
        schedule = lr_scheduler.ExponentialLR(program.optimizer, 0.5)
        for _ in range(parts):
            for x, y in loader:
                program.step(x, y)
            if parts == 1:  # else once in an epoch, of which there are more
                continue
            schedule.step()
            schedule.base_lrs = [0.05]
            program.optimizer.param_groups[0]["lr"] = 0.05
        assert parts in {1, schedule.last_epoch}, "a schedule of epochs is not held back"
        return program.ends_with()

    whole = streams(1)
    with accumulating(None, dataset="Stream", iterable=True, sampler="_InfiniteConstantSampler"):
        parts = streams(4)
    assert_same(whole, parts)


def test_a_loop_that_is_left_early_hands_nothing_on_to_what_follows() -> None:
    def leaves(after: int) -> Parameters:
        loader, second = DataLoader(made(), batch_size=32), DataLoader(made(24), batch_size=12)
        program = Program()
        schedule = lr_scheduler.StepLR(program.optimizer, 1, gamma=0.5)
        step = partial(clears_last, program)
        for data, most in ((loader, after), (loader, after), (second, 10**6)):
            for number, (x, y) in enumerate(data):
                if number == most:
                    break
                step(x, y)
            schedule.step()
        return program.ends_with()

    whole = leaves(2)
    with accumulating(96, sampler=ONE_BY_ONE):
        parts = leaves(2 * 4 + 3)
    assert_same(whole, parts)


def test_a_loader_has_the_length_of_its_iteration() -> None:
    def counts() -> tuple[Parameters, float]:
        loader, program = DataLoader(made(), batch_size=32), Program()
        batches = iter(loader)
        for _ in range(len(loader)):
            program.step(*next(batches))
        assert next(batches, None) is None, "all of the data was trained on"
        return program.ends_with(), sum(program.losses) / len(loader)

    whole, mean = counts()
    with accumulating(96, sampler=ONE_BY_ONE):
        parts, other = counts()
    assert_same(whole, parts)
    assert other == pytest.approx(mean, rel=1e-5), "mean loss, over the same samples and weights"
