"""Whose steps count: those of the optimizer that the program goes on to train with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import torch
from torch import nn
from torch.optim import SGD

from autotune.inside.data.feed import Feed
from autotune.inside.first_steps import MAX_STEPS_OF_ANOTHER, FirstSteps


def optimizers(count: int) -> list[SGD]:
    return [SGD([nn.Parameter(torch.zeros(1))], lr=0.1) for _ in range(count)]


def counted(steps: FirstSteps, optimizer: SGD, times: int) -> list[bool]:
    return [steps.optimizer_stepped(optimizer) for _ in range(times)]


def test_a_trial_step_at_the_start_is_no_training() -> None:
    steps, (trial, trained) = FirstSteps(), optimizers(2)
    assert counted(steps, trial, 2) == [True] * 2
    assert counted(steps, trained, 6) == [False] * 3 + [True] * 3
    assert steps.lead is trained
    assert steps.loaders is not None, "three steps of its own have told which loaders train"


def test_optimizers_that_take_turns_are_led_by_one_of_them() -> None:
    for critic_steps in (1, 3, 5, 100):
        steps, (generator, critic) = FirstSteps(), optimizers(2)
        leads = []
        for _ in range(4):
            counted(steps, generator, 1)
            counted(steps, critic, critic_steps)
            leads.append(steps.lead)
        assert leads == [generator if critic_steps <= 3 else critic] * 4


def test_a_stage_with_an_optimizer_of_its_own_is_counted_after_some_steps() -> None:
    steps, (first, second) = FirstSteps(), optimizers(2)
    counted(steps, first, 3)
    for _ in range(4):
        steps.step_ended()
    assert steps.is_complete
    for _ in range(3):
        assert counted(steps, second, MAX_STEPS_OF_ANOTHER) == [False] * MAX_STEPS_OF_ANOTHER
        assert counted(steps, first, 1) == [True], "it steps more rarely than the other"
    assert counted(steps, second, MAX_STEPS_OF_ANOTHER + 2)[-2:] == [True] * 2
    assert steps.is_complete, "what was observed stays"


def test_where_a_loaders_batches_lie_is_noted() -> None:
    """Data that was put on the device beforehand can come neither pinned nor from workers."""
    for batch, device in (
        ((torch.zeros(2, 3, device="meta"), torch.zeros(2)), "meta"),
        ({"x": torch.zeros(2, 3)}, "cpu"),
        (["no tensor"], "cpu"),
    ):
        steps, feed = FirstSteps(), SimpleNamespace(loader=object(), thread=1)
        steps.batch_handed_out(cast("Feed", feed), batch)
        assert steps.loads_on == device
