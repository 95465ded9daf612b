"""Activation checkpointing: the same losses to the bit, and less kept for the backward pass."""

from __future__ import annotations

import copy
import pickle

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


def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.mark.parametrize("every", [1, 2])
def test_losses_are_the_same_to_the_bit(every: int) -> None:
    model = net()
    seam = CheckpointSeam()
    seam.choose(every)
    plain = train(net())
    seam.act_on([model])
    try:
        assert train(model) == plain
    finally:
        seam.remove()


def test_the_more_blocks_forget_the_less_is_kept() -> None:
    model = net()
    seam = CheckpointSeam()
    kept = {}
    for every in (0, 2, 1):
        seam.choose(every)
        seam.act_on([model])
        kept[every] = kept_bytes(model)
    seam.choose(0)
    seam.act_on([model])
    assert kept_bytes(model) == kept[0]
    assert kept[1] < 0.4 * kept[0]
    assert kept[1] < kept[2] < 0.8 * kept[0]


def test_validation_is_not_computed_twice() -> None:
    model = net()
    calls = []
    model.get_submodule("blocks.0.inner.1").register_forward_hook(lambda *_: calls.append(1))
    seam = CheckpointSeam()
    seam.choose(1)
    seam.act_on([model])
    with torch.no_grad():
        model(torch.randn(2, 32))
    assert len(calls) == 1
    model(torch.randn(2, 32)).sum().backward()
    assert len(calls) == 3, "once before, and again in the backward pass"
    seam.remove()


def test_a_model_is_copied_and_pickled_as_ever() -> None:
    model = net()
    seam = CheckpointSeam()
    seam.choose(1)
    seam.act_on([model])
    twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    seam.remove()
    assert list(twin.state_dict()) == list(net().state_dict())
    assert "forward" not in vars(model.blocks[0])


def test_blocks_are_the_repeated_modules_with_the_most_parameters() -> None:
    class Stage(nn.Sequential):
        """As torchvision's ResNet has them: stages of blocks."""

    small = nn.ModuleList(Block(4) for _ in range(8))
    model = nn.Sequential(nn.Sequential(Block(), Block()), nn.Sequential(Block()), small)
    assert len(blocks_of([model])) == 11, "all of one class, wherever they lie"
    assert blocks_of([nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))]) == [], "layers are none"
    assert blocks_of([nn.Sequential(Block())]) == [], "one is not repeated"
