"""Whose steps count: those of the optimizer that the program goes on to train with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from autotune.inside.first_steps import MAX_STEPS_OF_ANOTHER, FirstSteps
from autotune.rig.wire import Ready, decode, encode
from tests.watching import Watching


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


@pytest.mark.parametrize(("batches", "skips"), [(1, False), (2, False), (3, False), (1, True)])
def test_the_batches_of_a_step_are_counted_whatever_makes_them(batches: int, skips: bool) -> None:
    """By a batch sampler; one batch that is skipped, as a scaler does, is no accumulation."""
    watching = Watching()
    with watching.installed():
        data = TensorDataset(torch.randn(160, 4))
        sampler = BatchSampler(SequentialSampler(data), 4, drop_last=False)
        loader = DataLoader(data, batch_sampler=Unequal(sampler))
        model = nn.Linear(4, 1)
        optimizer = SGD(model.parameters(), lr=0.1)
        for number, (x,) in enumerate(loader):
            model(x).square().mean().backward()
            if (number + 1) % batches or (skips and number == 4):
                continue
            optimizer.step()
            optimizer.zero_grad()
            if watching.profile is not None:
                break
    profile = watching.profile
    assert profile is not None
    assert profile.loop.batches_per_step == batches
    assert profile.loop.accumulates == (batches > 1)
    sent = Ready(profile, 0.0, (), 0)
    assert decode(encode(sent)) == sent


class Unequal(BatchSampler):
    """A batch sampler of the program's own."""

    def __init__(self, own: BatchSampler) -> None:
        self.own = own

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.own)

    def __len__(self) -> int:
        return len(self.own)
