"""Losses that another batch, or ranks, would make another one are named with their line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, AdamW

from autotune.inside.listener import Listener
from autotune.inside.observe import _optimizer_facts
from autotune.inside.seams import SeamSet
from autotune.inside.seams.losses import LossesSeam
from autotune.knobs import registry
from autotune.knobs.base import Here
from autotune.knobs.strategies import STRATEGIES
from autotune.program.domain import NotOffered
from tests.knobs.strategies.together import ByNorm
from tests.made import HARDWARE, make_profile

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


class Masks(nn.Module):
    """Detection by prototypes: a picture's masks are a product of what two heads say of it."""

    def __init__(self) -> None:
        super().__init__()
        self.pixels, self.parts = nn.Linear(6, 64 * 20), nn.Linear(6, 5 * 20)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.pixels(x).view(-1, 64, 20), self.parts(x).view(-1, 5, 20)


class Weighs(nn.Module):
    """A weight for each of two losses is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.logs = nn.Linear(6, CLASSES), nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(x))


class Prompts(nn.Module):
    """Samples are scored by texts, one for each of seven classes."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(6, 4 * BATCH), nn.Linear(3, 4 * BATCH)


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
    seams = SeamSet(Listener(), None)
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


def masks(model: nn.Module, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """The mean over pictures of the pixels' mean."""
    pairs = zip(*model(x), strict=True)
    each = [(pixels @ parts.T).sigmoid().square().mean() for pixels, parts in pairs]
    return torch.as_tensor(sum(each) / len(x))


def weighted(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Kendall et al. 2018: each loss by its own learned uncertainty."""
    assert isinstance(model, Weighs)
    losses = functional.cross_entropy(model(x), y), model(x).abs().mean()
    each = [(-s).exp() * loss + s for s, loss in zip(model.logs, losses, strict=True)]
    return torch.as_tensor(sum(each))


def by_texts(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    assert isinstance(model, Prompts)
    texts = model.text(torch.ones(7, 3))
    return functional.cross_entropy(model.image(x) @ texts.T, y % 7)


def in_order(model: nn.Module, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Classes as they lie in a dataset that nobody shuffles."""
    return functional.cross_entropy(model(x) / 2, torch.arange(BATCH))


COMPARE: dict[str, tuple[Loss, nn.Module | None]] = {
    "SimCLR": (ntxent, None),
    "CLIP": (lambda m, x, _: functional.cross_entropy(m(x), torch.arange(BATCH)), Towers()),
    "distances": (lambda m, x, _: torch.cdist(m(x), m(x)).mean(), None),
    "Barlow twins": (lambda m, x, _: (m(x).T @ m(x + 1) / BATCH).square().mean(), None),
    "a queue of its own batch": (
        lambda m, x, _: functional.cross_entropy(m(x) @ m(x).detach().T, torch.arange(BATCH)),
        None,
    ),
    "hard negatives": (
        lambda m, x, _: (m(x) @ torch.cat([m(x), m(x + 1)]).T).logsumexp(1).mean(),
        None,
    ),
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
    "masks": (masks, Masks()),
    "learned weights": (weighted, Weighs()),
    "texts of classes": (by_texts, Prompts()),
    "classes in order": (in_order, None),
    "CTC": (
        lambda m, x, y: functional.ctc_loss(
            m(x).log_softmax(1)[:, None],
            y[None, :2] % 9 + 1,
            torch.tensor([BATCH]),
            torch.tensor([2]),
        ),
        None,
    ),
    "cosine embedding": (
        lambda m, x, y: functional.cosine_embedding_loss(m(x), m(x + 1), y.sign() * 2 - 1),
        None,
    ),
    "orthogonal weights": (
        lambda m, x, y: (
            functional.cross_entropy(m(x), y)
            + (next(m.parameters()).T @ next(m.parameters()) - torch.eye(6)).norm()
        ),
        None,
    ),
    "a norm of all weights": (
        lambda m, x, y: (
            functional.cross_entropy(m(x), y)
            + torch.stack([p.square().sum() for p in m.parameters()]).sum().sqrt()
        ),
        None,
    ),
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
        offered = registry()[knob].domain(Here(HARDWARE, profile))
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
        assert losses.curve in str(STRATEGIES[strategy].refusal(Here(HARDWARE, profile)))
    assert not isinstance(registry()["batch_size"].domain(Here(HARDWARE, profile)), NotOffered)


def test_an_optimizer_with_a_step_of_its_own_is_not_shown_a_part_of_its_parameters() -> None:
    class Renamed(AdamW):
        pass

    parameters = [nn.Parameter(torch.ones(2))]
    for cls, is_refused in ((ByNorm, True), (SGD, False), (AdamW, False), (Renamed, False)):
        optimizer = cls(parameters, lr=0.1)
        seams = SeamSet(Listener(), None)
        seams.install()  # it wraps steps
        try:
            profile = make_profile(optimizers=(_optimizer_facts(optimizer),))
        finally:
            seams.remove()
        refusal = STRATEGIES["zero1"].refusal(Here(HARDWARE, profile))
        assert (refusal is not None) == is_refused
        assert STRATEGIES["ddp"].refusal(Here(HARDWARE, profile)) is None
    assert "ByNorm" in str(
        STRATEGIES["zero1"].refusal(
            Here(HARDWARE, make_profile(optimizers=(_optimizer_facts(ByNorm(parameters, lr=0.1)),)))
        )
    )


def test_what_is_carried_from_batch_to_batch_or_changed_by_hand_gets_no_ranks() -> None:
    for fact in ("carries_state", "steps_by_hand"):
        profile = make_profile(**{fact: "what was seen (train.py:3)"})
        for strategy in ("ddp", "fsdp", "zero1"):
            refusal = str(STRATEGIES[strategy].refusal(Here(HARDWARE, profile)))
            assert "what was seen (train.py:3)" in refusal
