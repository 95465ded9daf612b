"""Losses that another batch, or ranks, would make another one are named with their line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, AdamW

from autotune.domain import NotOffered
from autotune.inside.listener import Listener
from autotune.inside.observe import _optimizer_facts
from autotune.inside.seams import Seams
from autotune.inside.seams.losses import LossesSeam
from autotune.knobs import registry
from autotune.strategies import STRATEGIES
from tests.made import HARDWARE, make_profile
from tests.strategies.together import ByNorm

BATCH, CLASSES = 10, 10  # as many classes as samples, and no comparison of samples
Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


class Towers(nn.Module):
    """Two towers whose model returns how much each of one is like each of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.first(x) @ self.second(x.flip(1)).T)


class Attends(nn.Module):
    """One sequence whose parts look at each other: a batch of parts, within the model."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor((self.q(x) @ self.k(x).T).softmax(1) @ self.v(x))


class Loses(nn.Module):
    """A model that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Attends()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.inner(x), y)


def seen(loss: Loss, model: nn.Module | None = None) -> LossesSeam:
    """Train for some steps; return what was seen of the losses."""
    torch.manual_seed(0)
    model = model or nn.Linear(6, CLASSES)
    seams = Seams(Listener(), None)
    seams.install()
    seams.watch()
    try:
        optimizer = SGD(model.parameters(), lr=0.01)
        for _ in range(4):
            optimizer.zero_grad()
            loss(model, torch.randn(BATCH, 6), torch.randint(CLASSES, (BATCH,))).backward()
            optimizer.step()
    finally:
        seams.remove()
    return seams.losses


def ntxent(model: nn.Module, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """As the usual repository writes it: the right pair comes first."""
    z = functional.normalize(torch.cat([model(x), model(x + 0.1)]))
    alike = (z @ z.T)[~torch.eye(2 * BATCH, dtype=torch.bool)].view(2 * BATCH, -1)
    return functional.cross_entropy(alike / 0.5, torch.zeros(2 * BATCH, dtype=torch.int64))


COMPARE: dict[str, tuple[Loss, nn.Module | None]] = {
    "SimCLR": (ntxent, None),
    "CLIP": (lambda m, x, _: functional.cross_entropy(m(x), torch.arange(BATCH)), Towers()),
    "distances": (lambda m, x, _: torch.cdist(m(x), m(x)).mean(), None),
    "Barlow twins": (lambda m, x, _: (m(x).T @ m(x + 1) / BATCH).square().mean(), None),
    "einsum": (lambda m, x, _: torch.einsum("nc,mc->nm", m(x), m(x)).logsumexp(1).mean(), None),
}
ROWS = nn.Parameter(torch.randn(CLASSES, CLASSES))
PLAIN: dict[str, tuple[Loss, nn.Module | None]] = {
    "classes": (lambda m, x, y: functional.cross_entropy(m(x), y), None),
    "a cosine head": (
        lambda m, x, y: functional.cross_entropy(
            functional.linear(functional.normalize(m(x)), functional.normalize(ROWS)), y
        ),
        None,
    ),
    "attention": (lambda m, x, y: functional.cross_entropy(m(x), y), Attends()),
    "a model's own": (lambda m, x, y: m(x, y), Loses()),
    "stacked": (lambda m, x, _: torch.stack([m(x).sum(1), m(x + 1).sum(1)]).mean(), None),
    "pairs": (lambda m, x, _: functional.cosine_similarity(m(x), m(x + 1)).mean(), None),
    "VAE": (
        lambda m, x, _: m(x).square().sum() - 0.5 * torch.sum(1 + m(x) - m(x).exp()),
        None,
    ),
    "penalty": (
        lambda m, x, y: (
            functional.cross_entropy(m(x), y) + sum(p.norm() for p in m.parameters()) * 1e-3
        ),
        None,
    ),
}
CURVED: dict[str, Loss] = {
    "sqrt": lambda m, x, _: m(x).square().mean().sqrt(),
    "quotient of two sums": lambda m, x, _: 1 - m(x).tanh().sum() / m(x).square().sum(),
    "std over samples": lambda m, x, _: torch.relu(1 - m(x).std(dim=0)).mean(),
}


@pytest.mark.parametrize("name", COMPARE)
def test_a_loss_that_compares_samples_of_a_batch_is_named_and_keeps_its_batch(name: str) -> None:
    losses = seen(*COMPARE[name])
    assert "test_losses.py:" in losses.in_batch
    profile = make_profile(in_batch_loss=losses.in_batch)
    for knob in ("batch_size", "accumulation_steps", "strategy", "world_size"):
        offered = registry()[knob].domain(HARDWARE, profile)
        assert isinstance(offered, NotOffered), knob
        assert losses.in_batch in offered.reason


@pytest.mark.parametrize("name", PLAIN)
def test_a_loss_that_is_a_sum_over_samples_keeps_all_knobs(name: str) -> None:
    losses = seen(*PLAIN[name])
    assert (losses.in_batch, losses.curve) == ("", "")


@pytest.mark.parametrize("name", CURVED)
def test_a_loss_that_bends_a_mean_is_named_and_gets_no_ranks(name: str) -> None:
    losses = seen(CURVED[name])
    assert name in losses.curve
    assert "test_losses.py:" in losses.curve
    profile = make_profile(curved_loss=losses.curve)
    for strategy in ("ddp", "fsdp", "zero1"):
        assert losses.curve in str(STRATEGIES[strategy].refusal(HARDWARE, profile))
    assert not isinstance(registry()["batch_size"].domain(HARDWARE, profile), NotOffered)


def test_an_optimizer_with_a_step_of_its_own_is_not_shown_a_part_of_its_parameters() -> None:
    class Renamed(AdamW):
        pass

    parameters = [nn.Parameter(torch.ones(2))]
    for cls, is_refused in ((ByNorm, True), (SGD, False), (AdamW, False), (Renamed, False)):
        optimizer = cls(parameters, lr=0.1)
        seams = Seams(Listener(), None)
        seams.install()  # it wraps steps
        try:
            profile = make_profile(optimizers=(_optimizer_facts(optimizer),))
        finally:
            seams.remove()
        refusal = STRATEGIES["zero1"].refusal(HARDWARE, profile)
        assert (refusal is not None) == is_refused
        assert STRATEGIES["ddp"].refusal(HARDWARE, profile) is None
    assert "ByNorm" in str(
        STRATEGIES["zero1"].refusal(
            HARDWARE, make_profile(optimizers=(_optimizer_facts(ByNorm(parameters, lr=0.1)),))
        )
    )


def test_what_is_carried_from_batch_to_batch_or_changed_by_hand_gets_no_ranks() -> None:
    for fact in ("carries_state", "steps_by_hand"):
        profile = make_profile(**{fact: "what was seen (train.py:3)"})
        for strategy in ("ddp", "fsdp", "zero1"):
            refusal = str(STRATEGIES[strategy].refusal(HARDWARE, profile))
            assert "what was seen (train.py:3)" in refusal
