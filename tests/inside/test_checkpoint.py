"""Activation checkpointing: the same losses to the bit, and less kept for the backward pass."""

from __future__ import annotations

import copy
import enum
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autotune.inside.code.structure import structure_of
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


@pytest.mark.parametrize("reentrant", [True, False])
def test_blocks_that_the_program_checkpoints_itself_train_the_same(*, reentrant: bool) -> None:
    class Checkpointed(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = checkpoint(block, x.requires_grad_(), use_reentrant=reentrant)
            y: torch.Tensor = self.head(x)
            return y

    def losses(every: int) -> list[float]:
        torch.manual_seed(0)
        model = Checkpointed()
        seam = CheckpointSeam()
        seam.choose(every)
        seam.act_on([model])
        try:
            return train(model)
        finally:
            seam.remove()

    assert losses(1) == losses(0)


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


class Stateful(nn.Module):
    """A block whose passes change buffers that the next pass reads, in the way of *kind*."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        linear: nn.Module = nn.Linear(8, 8)
        if kind == "spectral norm":
            linear = nn.utils.parametrizations.spectral_norm(linear)
        elif kind == "old spectral norm":
            linear = nn.utils.spectral_norm(linear)
        self.linear = linear
        self.norm = nn.BatchNorm1d(8) if kind == "batch norm" else nn.Identity()
        self.drop = nn.Dropout(0.3)
        self.register_buffer("codes", torch.randn(16, 8))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("same", self.codes if kind == "two names" else None)

    codes: torch.Tensor
    mean: torch.Tensor
    same: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.tanh(self.norm(self.linear(self.drop(x))))
        match self.kind:
            case "codebook":
                nearest = torch.cdist(y, self.codes).argmin(1)
                y = y * self.codes[nearest]
                self.codes.data[nearest] = 0.9 * self.codes[nearest] + 0.1 * y.detach()
            case "two names":
                self.codes.data.mul_(0.9)
                y = y * self.same[:1].clone()
            case "another tensor each time":
                y = y * torch.exp(self.mean)
                self.mean = 0.5 * self.mean + 0.5 * y.detach().mean(0)
        return x + y


KINDS = (
    "batch norm",
    "spectral norm",
    "old spectral norm",
    "codebook",
    "two names",
    "another tensor each time",
)


def stateful(kind: str) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Stateful(kind) for _ in range(3)))


def trained(model: nn.Sequential, passes: int = 2, steps: int = 5) -> dict[str, torch.Tensor]:
    """The state after some steps of several passes before one backward pass."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(steps):
        outputs = [model(torch.randn(4, 8)) for _ in range(passes)]
        optimizer.zero_grad()
        loss = torch.stack(outputs).diff(dim=0).square().mean() + outputs[0].square().mean()
        if number == 2:
            loss.backward(retain_graph=True)  # computes again twice
        loss.backward()
        optimizer.step()
    return {**copy.deepcopy(model.state_dict()), "random": torch.rand(())}


def test_what_blocks_change_as_they_compute_is_changed_once() -> None:
    for kind in KINDS:
        plain = trained(stateful(kind))
        for every in (1, 2):
            model = stateful(kind)
            seam = CheckpointSeam()
            seam.choose(every)
            seam.act_on([model])
            try:
                found = trained(model)
            finally:
                seam.remove()
            assert found.keys() == plain.keys()
            for name, expected in plain.items():
                assert torch.equal(found[name], expected), (kind, every, name)


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


def test_caches_and_lists_among_the_arguments_are_added_to_once() -> None:
    def gradients(every: int) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.ModuleList(Caching(number) for number in range(2))
        seam = CheckpointSeam()
        seam.choose(every)
        seam.act_on([model])
        try:
            cache, losses = Cache(), list[torch.Tensor]()
            x = torch.randn(4, 8)
            for block in (*model, *model):
                x = block(x, cache=cache, losses=losses)
            (x.square().mean() + torch.stack(losses).sum()).backward()
        finally:
            seam.remove()
        assert [len(keys) for keys in cache.keys] == [2, 2]
        assert len(losses) == 4
        return [p.grad for p in model.parameters() if p.grad is not None]

    assert all(map(torch.equal, gradients(1), gradients(0)))


def test_a_model_that_caches_its_keys_as_it_trains_adds_them_once() -> None:
    """T5 makes a cache in training, too, and hands it to its blocks."""
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=20,
        d_model=8,
        d_kv=4,
        d_ff=8,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
    )

    def losses(every: int) -> list[float]:
        torch.manual_seed(0)
        model = transformers.T5ForConditionalGeneration(config)
        seam, optimizer = CheckpointSeam(), torch.optim.SGD(model.parameters(), lr=0.1)
        seam.choose(every)
        seam.act_on([model])
        ids, found = torch.arange(2, 18).reshape(2, 8), []
        try:
            for _ in range(3):
                loss = model(input_ids=ids, labels=ids).loss
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(loss.item())
        finally:
            seam.remove()
        return found

    assert losses(1) == losses(0)


class Mode(enum.Enum):
    PAIR = [1, 2]  # noqa: RUF012 - a value that could be copied


class Single:
    """There is one of it."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def __copy__(self) -> Single:
        return self


def test_what_cannot_be_copied_keeps_its_parts() -> None:
    value, single = Mode.PAIR.value, Single()
    rows = single.rows
    assert structure_of((Mode.PAIR, single)) == (Mode.PAIR, single)
    assert Mode.PAIR.value is value
    assert single.rows is rows
