"""What is recorded of a training in this process: real steps of a real model."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.backends import cuda
from torch.optim import SGD

from autotune.inside.seams.torch_settings import HAS_NEWER_NAMES
from autotune.inside.training_recorder import CANCELLING, REDUCED, TrainingRecorder
from autotune.measurement.learning.training_trace import LAST_LOSSES
from autotune.program.rehearsal import TracePlan


def recorded(plan: TracePlan, factor: float = 1.0, most: int = 30) -> TrainingRecorder:
    """Return the recorder of a training that ends when it is over."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), 0.1)
    recorder = TrainingRecorder(lambda: {model: None}, lambda: [optimizer], plan)
    x = torch.randn(16, 4)
    for _ in range(most):
        recorder.batch_handed(x, len(x))
        recorder.forward_called()
        loss = factor * (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        recorder.loss_seen(loss)
        loss.backward()
        optimizer.step()
        recorder.stepped(optimizer, 1)
        if recorder.is_over:
            break
    return recorder


def ceilings(factor: float) -> tuple[float, ...]:
    own = recorded(TracePlan(steps=20)).trace.steps
    return tuple(factor * (step.loss or 0.0) for step in own[:1]) * len(own)


def test_a_run_whose_losses_are_hopeless_is_over_at_once() -> None:
    plan = TracePlan(steps=20, ends=True, ceilings=ceilings(1.0))
    assert len(recorded(plan).trace.steps) == 20
    assert len(recorded(plan, factor=20.0).trace.steps) == LAST_LOSSES + 1
    assert len(recorded(plan, factor=float("nan")).trace.steps) == LAST_LOSSES + 1
    unlimited = TracePlan(steps=20, ends=True)
    assert len(recorded(unlimited, factor=20.0).trace.steps) == 20


@pytest.mark.skipif(not HAS_NEWER_NAMES, reason="this torch has the older names alone")
def test_products_round_as_the_device_computes_them_however_that_was_set() -> None:
    torch.set_float32_matmul_precision("medium")
    cuda.matmul.allow_tf32 = True  # torch cannot say its older setting any more
    try:
        assert recorded(TracePlan(steps=3)).trace.rounding == REDUCED["medium"] / CANCELLING
    finally:
        torch.set_float32_matmul_precision("highest")


def test_weights_that_autograd_has_kept_are_shaken_all_the_same() -> None:
    """Those that no module is called with are first seen at the backward pass."""
    weight, x = nn.Parameter(torch.ones(4, 4)), torch.randn(3, 4, requires_grad=True)
    optimizer = SGD([weight], 0.1)
    recorder = TrainingRecorder(dict, lambda: [optimizer], TracePlan(shakes=1))
    loss = (x @ weight).sum()
    recorder.loss_seen(loss)
    loss.backward()
    assert not recorder.broken
    assert recorder.trace.shaken == 1
    assert not torch.equal(weight, torch.ones(4, 4))


def test_losses_of_a_step_that_is_held_back_are_for_the_next_one_of_its_optimizer() -> None:
    weights = [nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))]
    one, other = (SGD([weight], 0.0) for weight in weights)
    recorder = TrainingRecorder(dict, lambda: [one, other], TracePlan())
    for number, is_real in ((1.0, False), (3.0, True)):
        for optimizer, loss in ((one, number * weights[0]), (other, 10 * number * weights[1])):
            recorder.loss_seen(loss)
            loss.backward()
            recorder.stepped(optimizer, 1) if is_real else recorder.held(optimizer)
    assert [step.loss for step in recorder.trace.steps] == [2.0, 20.0]
    assert [step.gradient for step in recorder.trace.steps] == [4.0, 40.0]
