"""What the untouched steps tell of a program whose blocks, weights or batches are not their own."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from autotune.inside.ranks.group import ALONE
from autotune.inside.step_tracker import Step, StepTracker
from autotune.knobs import registry
from autotune.knobs.base import Here
from autotune.knobs.strategies.base import ranks_refusal
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile
from tests.made import make_hardware

Blocks = Callable[[torch.Tensor], torch.Tensor]
DRAWS = numpy.random.default_rng(0)
LOG: list[float] = []


class Watcher(StepTracker):
    """Watches a program in this process."""

    profile: Profile | None = None

    def on_step_end(self, step: Step) -> None:
        """Measure nothing."""

    def observed(self) -> None:
        self.profile = self.observer.profile({})


def observed(model: nn.Module, step: Callable[[torch.Tensor], torch.Tensor]) -> Profile:
    """Return what is seen of a program that trains a model in steps that return a loss."""
    watcher = Watcher(None, ALONE)
    watcher.seams.install()
    watcher.seams.watch()
    try:
        loader = DataLoader(TensorDataset(torch.randn(32, 3, 4, 4)), 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for (x,) in islice(loader, 8):  # it never ends for one who watches
            optimizer.zero_grad()
            step(x).backward()
            optimizer.step()
    finally:
        watcher.seams.remove()
    assert watcher.profile is not None
    return watcher.profile


def offer(knob: str, profile: Profile) -> str:
    """Return why a knob is refused, empty where it is offered."""
    domain = registry()[knob].domain(Here(make_hardware(), profile))
    assert isinstance(domain, (Domain, NotOffered))
    return domain.reason if isinstance(domain, NotOffered) else ""


class Block(nn.Module):
    """A block that changes something of its own as it computes, by *kind*."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.linear = nn.Linear(48, 48)
        self.codes = nn.Parameter(torch.randn(48), requires_grad=False)
        self.norm = nn.BatchNorm1d(48)
        self.draws = random.Random(0)
        self.generator = torch.Generator()
        self.history: list[float] = []
        self.state = torch.zeros(48)
        self.count = 0
        self.cache: dict[int, torch.Tensor] = {}

    def forward(self, x: torch.Tensor, seen: dict[str, int]) -> torch.Tensor:
        x = x.mul_(0.5) if self.kind == "its argument x" else x
        y: torch.Tensor = torch.relu(self.norm(self.linear(x)))
        match self.kind:
            case "codes":
                self.codes.data.mul_(0.9)
            case "draws":
                y = y * self.draws.random()
            case "generator":
                y = y * torch.rand(48, generator=self.generator)
            case "history":
                self.history.append(0.0)
            case "state":
                self.state += 1
            case "DRAWS":
                y = y * float(DRAWS.random())
            case "LOG":
                self.note()
            case "its argument x":
                pass  # it was changed before
            case _:  # what can be put back, and a cache that is filled once
                self.count += 1
                seen["blocks"] = seen.get("blocks", 0) + 1
                self.cache.setdefault(len(x), torch.ones(48))
                y = y * random.random()
        return x + y

    def note(self) -> None:
        LOG.append(0.0)


class Net(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(kind) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen: dict[str, int] = {}
        x = x.flatten(1)
        for block in self.blocks:
            x = block(x, seen)
        return x


def test_blocks_that_change_more_than_can_be_put_back_are_not_computed_twice() -> None:
    for kind in (
        "codes",
        "draws",
        "generator",
        "history",
        "state",
        "DRAWS",
        "LOG",
        "its argument x",
    ):
        net = Net(kind)
        profile = observed(net, lambda x, net=net: net(x).square().mean())  # type: ignore[misc]
        assert profile.blocks_change.startswith("Block: "), kind
        assert kind in profile.blocks_change
        assert profile.blocks_change in offer("activation_checkpointing", profile)


def test_blocks_whose_changes_can_be_put_back_are_offered_to_be_computed_twice() -> None:
    net = Net("none")
    profile = observed(net, lambda x: net(x).square().mean())
    assert not profile.blocks_change
    assert not offer("activation_checkpointing", profile)


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


def test_hooks_within_blocks_that_collect_what_they_see_are_no_matter_of_two_passes() -> None:
    net, features = Net("none"), []
    net.get_submodule("blocks.0.linear").register_forward_hook(
        lambda _m, _i, output: features.append(output.detach())
    )
    profile = observed(net, lambda x: net(x).square().mean())
    assert "features" in offer("activation_checkpointing", profile)


class Checkpointed(nn.Module):
    """Calls its layers by torch's own checkpoint, or by one written as an autograd function."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(48, 48) for _ in range(2))
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        for layer in self.layers:
            x = checkpoint(layer, x.requires_grad_(), use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("reentrant", [True, False])
def test_modules_that_compute_again_in_the_backward_pass_are_no_outermost_ones(
    *, reentrant: bool
) -> None:
    net = Checkpointed(reentrant=reentrant)
    profile = observed(net, lambda x: net(x).square().mean())
    assert profile.root_modules == ("Checkpointed",)
    assert profile.program_checkpointing


def conv_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Flatten(), nn.Linear(64, 1)
    )


def flattened(model: nn.Module) -> torch.Tensor:
    """Lay all parameters into one buffer, as programs with optimizers of their own do."""
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    nn.utils.vector_to_parameters(flat, model.parameters())
    return flat


def test_weights_in_a_buffer_or_seen_by_others_stay_where_they_lie() -> None:
    def alone(model: nn.Sequential) -> Any:
        return copy.deepcopy(model).state_dict()  # as of a best epoch, or an average

    def tied(model: nn.Sequential) -> None:
        model.insert(1, model[1])

    def viewed(model: nn.Sequential) -> Any:
        return [p.data.view(-1) for p in model.parameters()]

    def shared(model: nn.Sequential) -> None:
        other = nn.Conv2d(4, 4, 3, padding=1)
        other.weight.data = model.get_parameter("1.weight").data
        model.insert(1, other)

    def without_elements(model: nn.Sequential) -> None:
        model.register_parameter("unused", nn.Parameter(torch.empty(0, 1, 1, 1)))

    for prepare, name in (
        (alone, ""),
        (without_elements, ""),
        (tied, ""),
        (flattened, "0.weight"),
        (viewed, "0.weight"),
        (shared, "2.weight"),
    ):
        model = conv_net()
        held = prepare(model)
        profile = observed(model, lambda x, model=model: model(x).square().mean())  # type: ignore[misc]
        assert profile.shared_weight == name, prepare
        assert (
            (name in offer("channels_last", profile))
            if name
            else not offer("channels_last", profile)
        )
        del held


class Recurrent(nn.Module):
    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self.rnn = nn.LSTM(48, 8, batch_first=True)
        self.keeps = keeps
        self.state: Any = None

    def forward(self, x: torch.Tensor, state: Any = None) -> Any:
        state = self.state if self.keeps else state
        output, state = self.rnn(x.flatten(1).unsqueeze(1), state)
        self.state = tuple(part.detach() for part in state)
        return output if self.keeps else (output, state)


def recurrent(how: str) -> Callable[[nn.Module, torch.Tensor], torch.Tensor]:
    held: list[Any] = [None]

    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if how == "kept by the model":
            return model(x).square().mean()  # type: ignore[no-any-return]
        zeros = tuple(torch.zeros(1, len(x), 8) for _ in range(2))
        output, state = model(x, held[0] or zeros)
        match how:
            case "detached":
                held[0] = tuple(part.detach() for part in state)
            case "copied":
                held[0] = tuple(part.detach().clone() for part in state)
            case _:  # the same batch once more, from where it was
                output, state = model(x, state)
        return output.square().mean()  # type: ignore[no-any-return]

    return step


def test_a_state_that_goes_from_batch_to_batch_keeps_the_batches_as_they_are() -> None:
    for how, carries in (
        ("kept by the model", "LSTM"),
        ("detached", "Recurrent"),
        ("copied", "Recurrent"),
        ("begun anew", ""),
    ):
        model, step = Recurrent(keeps=how == "kept by the model"), recurrent(how)
        profile = observed(model, lambda x, m=model, s=step: s(m, x))  # type: ignore[misc]
        assert profile.carries_state == carries or (carries and profile.carries_state), how
        reasons = [offer("batch_size", profile), offer("accumulation_steps", profile)]
        reasons.append(ranks_refusal(make_hardware(), profile) or "")
        is_said = ["the batch before" in reason for reason in reasons]
        assert is_said == [bool(carries)] * 3, how


class Tells(nn.Module):
    """Returns beside its output what it was called with, as variational models do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(48, 48)

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> Any:
        return self.linear(x.flatten(1) + places), x, places


def test_what_a_model_hands_through_is_no_state() -> None:
    same, places = torch.randn(4, 3, 4, 4), torch.randn(48)  # of one batch: all of the data
    for given in (lambda x: x, lambda _: same):
        model = Tells()
        profile = observed(model, lambda x, m=model, g=given: m(g(x), places)[0].square().mean())  # type: ignore[misc]
        assert not profile.carries_state
