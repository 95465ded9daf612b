"""Which modules are blocks, and which calls are outermost."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autotune.knobs import registry
from autotune.knobs.base import Here
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile
from tests.made import make_hardware
from tests.watching import Watching


def observed(model: nn.Module, step: Callable[[torch.Tensor], torch.Tensor]) -> Profile:
    """Return what is seen of a program that trains a model in steps that return a loss."""
    watcher = Watching()
    with watcher.installed():
        loader = DataLoader(TensorDataset(torch.randn(32, 3, 4, 4)), 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for (x,) in islice(loader, 8):  # it never ends for one who watches
            optimizer.zero_grad()
            step(x).backward()
            optimizer.step()
    assert watcher.profile is not None
    return watcher.profile


def offer(knob: str, profile: Profile) -> str:
    """Return why a knob is refused, empty where it is offered."""
    domain = registry()[knob].domain(Here(make_hardware(), profile))
    assert isinstance(domain, (Domain, NotOffered))
    return domain.reason if isinstance(domain, NotOffered) else ""


class Alone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(48, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)  # type: ignore[no-any-return]


def compute_elsewhere(block: Alone) -> Alone:
    block.forward = block.linear.forward  # type: ignore[method-assign, assignment]
    return block


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:")
def test_modules_that_compute_by_no_forward_of_their_class_are_no_blocks() -> None:
    for made in (torch.jit.script, compute_elsewhere):
        net = nn.Sequential(nn.Flatten(), *(made(Alone()) for _ in range(2)))
        profile = observed(net, lambda x, net=net: net(x).square().mean())  # type: ignore[misc]
        assert "no repeated blocks" in offer("activation_checkpointing", profile)
