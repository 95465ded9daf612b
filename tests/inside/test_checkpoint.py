"""Activation checkpointing: the same losses to the bit, and less kept for the backward pass."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from autotune.inside.seams.checkpoint import CheckpointSeam, blocks_of


class Block(nn.Module):
    """A residual block with dropout."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.2), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        y: torch.Tensor = x + scale * self.inner(x)
        return y


class Net(nn.Module):
    """Six blocks in a list, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.head = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, scale=0.5)
        y: torch.Tensor = self.head(x)
        return y


def train(net: Net, steps: int = 20) -> list[float]:
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = net(torch.randn(64, 32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def kept_bytes(net: Net) -> int:
    """What a forward pass keeps for the backward pass."""
    kept = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        net(torch.randn(64, 32))
    return sum(kept.values())


@contextmanager
def recomputing(every: int, *models: nn.Module) -> Iterator[None]:
    seam = CheckpointSeam()
    seam.every = every
    seam.act_on(models)
    try:
        yield
    finally:
        seam.remove()


def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:")
def test_blocks_are_the_repeated_modules_with_the_most_parameters() -> None:
    small = nn.ModuleList(Block(4) for _ in range(8))
    model = nn.Sequential(nn.Sequential(Block(), Block()), nn.Sequential(Block()), small)
    assert len(blocks_of([model])) == 11, "all of one class, wherever they lie"
    assert blocks_of([nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))]) == [], "layers are none"
    assert blocks_of([nn.Sequential(Block())]) == [], "one is not repeated"
    elsewhere, scripted = [Block(), Block()], [torch.jit.script(Block()) for _ in range(2)]
    for block in elsewhere:
        block.forward = block.inner.forward  # type: ignore[method-assign, assignment]
    for blocks in (elsewhere, scripted):
        assert blocks_of([nn.Sequential(*blocks)]) == [], "no forward of their class computes"


class Stateful(nn.Module):
    """A block whose passes change buffers that the next pass reads, in the way of *kind*."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.linear = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.3)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("memory", None)

    mean: torch.Tensor
    memory: torch.Tensor | None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.tanh(self.linear(self.drop(x)))
        if self.kind == "none at first":
            before = torch.zeros(8) if self.memory is None else self.memory
            y = y * torch.exp(before)
            self.memory = 0.5 * before + 0.5 * y.detach().mean(0)
        else:
            y = y * torch.exp(self.mean)
            self.mean = 0.5 * self.mean + 0.5 * y.detach().mean(0)
        return x + y


def trained(kind: str, every: int) -> dict[str, torch.Tensor]:
    """The state after some steps of two passes before one backward pass."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Stateful(kind) for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recomputing(every, model):
        for number in range(5):
            outputs = [model(torch.randn(4, 8)) for _ in range(2)]
            optimizer.zero_grad()
            loss = torch.stack(outputs).diff(dim=0).square().mean() + outputs[0].square().mean()
            if number == 2:
                loss.backward(retain_graph=True)  # computes again twice
            loss.backward()
            optimizer.step()
    return {**copy.deepcopy(model.state_dict()), "random": torch.rand(())}


class Cache:
    """What blocks have computed, by block, as attention keeps its keys."""

    def __init__(self) -> None:
        self.keys: list[list[torch.Tensor]] = [[], []]


class Caching(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, *, cache: Cache, losses: list[torch.Tensor]) -> torch.Tensor:
        own = cache.keys[self.number]
        own.append(self.linear(x))
        losses.append(own[-1].square().mean())
        return x + torch.tanh(torch.stack(own)).sum(0)


@pytest.mark.slow
def test_losses_are_the_same_to_the_bit_and_less_is_kept_the_more_blocks_forget() -> None:
    plain, whole = train(net()), kept_bytes(net())
    kept = {}
    for every in (1, 2):
        model = net()
        with recomputing(every, model):
            twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
            assert train(model) == plain
            kept[every] = kept_bytes(model) / whole
        assert list(twin.state_dict()) == list(model.state_dict())
        assert kept_bytes(model) == whole
    assert kept[1] < 0.4
    assert kept[1] < kept[2] < 0.8


def test_validation_is_not_computed_twice() -> None:
    model, calls = net(), []
    model.get_submodule("blocks.0.inner.1").register_forward_hook(lambda *_: calls.append(1))
    with recomputing(1, model):
        with torch.no_grad():
            model(torch.randn(2, 32))
        assert len(calls) == 1
        model(torch.randn(2, 32)).sum().backward()
    assert len(calls) == 3, "once before, and again in the backward pass"


@pytest.mark.parametrize("kind", ["another tensor each time", "none at first"])
def test_what_blocks_change_as_they_compute_is_changed_once(kind: str) -> None:
    plain = trained(kind, 0)
    for every in (1, 2):
        found = trained(kind, every)
        assert found.keys() == plain.keys()
        for name, expected in plain.items():
            assert torch.equal(found[name], expected), (every, name)


def test_caches_and_lists_among_the_arguments_are_added_to_once() -> None:
    """T5 makes a cache in training, too, and hands it to its blocks."""

    def gradients(every: int) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.ModuleList(Caching(number) for number in range(2))
        with recomputing(every, model):
            cache, losses = Cache(), list[torch.Tensor]()
            x = torch.randn(4, 8)
            for block in (*model, *model):
                x = block(x, cache=cache, losses=losses)
            (x.square().mean() + torch.stack(losses).sum()).backward()
        assert [len(keys) for keys in cache.keys] == [2, 2]
        assert len(losses) == 4
        return [p.grad for p in model.parameters() if p.grad is not None]

    assert all(map(torch.equal, gradients(1), gradients(0)))
