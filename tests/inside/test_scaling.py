"""fp16 gradients are true wherever a program reads them, whatever it does with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.utils.checkpoint import checkpoint

from tests.inside.test_precision import under

LR = 0.1


@dataclass
class Run:
    """What one run of a program came to.

    Attributes:
        read: Numbers that the program read of its gradients.
    """

    weights: list[torch.Tensor]
    began: list[torch.Tensor]
    read: list[torch.Tensor] = field(default_factory=list)

    @property
    def moved(self) -> torch.Tensor:
        """By how much the weights have moved."""
        return torch.cat([(w.detach() - b).flatten() for w, b in zip(self.weights, self.began)])


class Loop:
    """A model with its data; each step of a program calls ``loss``."""

    def __init__(self, height: float = 1.0) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.x, self.height = torch.randn(16, 4), height
        self.weights = list(self.model.parameters())
        self.run = Run(self.weights, [w.detach().clone() for w in self.weights])

    def loss(self, x: torch.Tensor | None = None) -> torch.Tensor:
        x = self.x if x is None else x
        wanted = x.sum(1, keepdim=True)
        return self.height * functional.mse_loss(self.model(x), wanted)

    @property
    def gradients(self) -> Iterator[torch.Tensor]:
        return (p.grad for p in self.weights if p.grad is not None)

    def read(self, value: Any) -> None:
        self.run.read.append(torch.as_tensor(value).detach().clone())

    def norm(self) -> torch.Tensor:
        return torch.stack([g.norm() for g in self.gradients]).norm()


def clips_by_hand(loop: Loop, steps: int) -> None:
    optimizer = SGD(loop.weights, lr=LR)
    for _ in range(steps):
        optimizer.zero_grad()
        loop.loss().backward()
        norm = loop.norm()
        loop.read(norm)
        for gradient in loop.gradients:
            gradient.mul_(min(1.0, 0.5 / (float(norm) + 1e-6)))
        optimizer.step()


def clips_by_parts_of_torch(loop: Loop, steps: int) -> None:
    optimizer = AdamW(loop.weights, lr=LR)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=False)
        loop.loss().backward()
        norm = nn.utils.get_total_norm(loop.gradients)
        loop.read(norm)
        nn.utils.clip_grads_with_norm_(loop.weights, 0.5, norm)
        optimizer.step()


def clips_twice(loop: Loop, steps: int) -> None:
    """Each of two optimizers after a clipping of all, and of its own by value."""
    first, second = SGD(loop.weights[:2], lr=LR), SGD(loop.weights[2:], lr=LR)
    for _ in range(steps):
        loop.model.zero_grad()
        loop.loss().backward()
        loop.read(nn.utils.clip_grad_norm_(loop.weights, 0.5))
        nn.utils.clip_grad_value_(loop.weights[:2], 0.05)
        first.step()
        loop.read(nn.utils.clip_grad_norm_(loop.weights[2:], 0.25))
        second.step()


def steps_twice(loop: Loop, steps: int) -> None:
    """Two steps by the gradients of one pass, with clipping before each."""
    optimizer = SGD(loop.weights, lr=LR)
    for _ in range(steps):
        optimizer.zero_grad()
        loop.loss().backward()
        for _ in range(2):
            nn.utils.clip_grad_norm_(loop.weights, 0.5)
            optimizer.step()


def adds_up_and_clips_each(loop: Loop, steps: int) -> None:
    """Several passes before a step, the gradients clipped after each of them."""
    optimizer = SGD(loop.weights, lr=LR)
    for _ in range(steps):
        for part in loop.x.chunk(4):
            (loop.loss(part) / 4).backward()
            loop.read(nn.utils.clip_grad_norm_(loop.weights, 0.5))
        optimizer.step()
        optimizer.zero_grad()


def makes_gradients_by_hand(loop: Loop, steps: int) -> None:
    """Steps by gradients that the program wrote itself, after a pass that reaches other leaves."""
    optimizer = SGD(loop.weights, lr=LR)
    for _ in range(steps):
        nudge = torch.zeros_like(loop.x, requires_grad=True)
        (nudge.sum() * 1e-3).backward()
        loop.read(nudge.grad)
        for weight, gradient in zip(
            loop.weights, torch.autograd.grad(loop.loss(), loop.weights), strict=True
        ):
            weight.grad = gradient
        optimizer.step()


def adds_noise_and_decay(loop: Loop, steps: int) -> None:
    optimizer = SGD(loop.weights, lr=LR)
    noise = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        loop.loss().backward()
        for weight in loop.weights:
            assert weight.grad is not None
            weight.grad += 0.01 * weight.detach() + 0.1 * torch.randn(weight.shape, generator=noise)
        optimizer.step()


def clips_adaptively(loop: Loop, steps: int) -> None:
    optimizer = SGD(loop.weights, lr=LR)
    for _ in range(steps):
        optimizer.zero_grad()
        loop.loss().backward()
        for weight in loop.weights:
            assert weight.grad is not None
            most = 0.2 * weight.detach().norm().clamp(min=1e-3)
            weight.grad.mul_((most / weight.grad.norm().clamp(min=1e-6)).clamp(max=1.0))
        optimizer.step()


class Sam(Optimizer):
    """Sharpness-aware minimization as it is usually written."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"rho": 0.05})
        self.base = SGD(self.param_groups, lr=LR, momentum=0.9)

    @torch.no_grad()
    def climb(self) -> None:
        owned = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in owned]).norm()
        for p in owned:
            self.state[p]["climbed"] = 0.05 * p.grad / (norm + 1e-12)
            p.add_(self.state[p]["climbed"])
        self.zero_grad()

    @torch.no_grad()
    def come_back(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(self.state[p]["climbed"])
        self.base.step()
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.climb()
        with torch.enable_grad():
            closure()
        self.come_back()


def climbs_first(loop: Loop, steps: int) -> None:
    optimizer = Sam(loop.weights)
    for _ in range(steps):
        loop.loss().backward()
        loop.read(loop.norm())
        optimizer.climb()
        loop.loss().backward()
        optimizer.come_back()


def climbs_with_a_closure(loop: Loop, steps: int) -> None:
    optimizer = Sam(loop.weights)

    def closure() -> torch.Tensor:
        loss = loop.loss()
        loss.backward()
        return loss

    for _ in range(steps):
        closure()
        optimizer.step(closure)


def has_a_closure(loop: Loop, steps: int) -> None:
    optimizer = Adam(loop.weights, lr=LR)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loop.loss()
        loss.backward()
        loop.read(loop.norm())
        return loss

    for _ in range(steps):
        optimizer.step(closure)


def moves_one_part_by_hand(loop: Loop, steps: int) -> None:
    optimizer = SGD(loop.weights[2:], lr=LR)
    for _ in range(steps):
        loop.loss().backward()
        with torch.no_grad():
            for weight in loop.weights[:2]:
                assert weight.grad is not None
                weight.sub_(LR * weight.grad)
        optimizer.step()
        loop.model.zero_grad()


def trains_on_attacks(loop: Loop, steps: int) -> None:
    """Inputs, and nudges that no module and no optimizer knows, get gradients."""
    optimizer = SGD(loop.weights, lr=LR)
    for _ in range(steps):
        x = loop.x.clone().requires_grad_()
        loop.loss(x).backward()
        assert x.grad is not None
        loop.read(x.grad)
        nudge = torch.zeros_like(x, requires_grad=True)
        (loop.model(loop.x + nudge) ** 2).mean().backward()
        assert nudge.grad is not None
        loop.read(nudge.grad)
        optimizer.zero_grad()
        loop.loss(loop.x + x.grad + 0.1 * nudge.grad).backward()
        optimizer.step()


def hooks_gradients(loop: Loop, steps: int) -> None:
    """Hooks that clamp, one that changes in place, and readers of activations' gradients."""
    optimizer = SGD(loop.weights, lr=LR)
    for weight in loop.weights[:2]:
        weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    loop.weights[2].register_hook(lambda gradient: gradient.clamp_(-0.1, 0.1) and None)
    loop.model[2].register_full_backward_hook(lambda _m, gradients, _o: loop.read(gradients[0]))
    loop.model[1].register_full_backward_pre_hook(lambda _m, gradients: (gradients[0] * 0.5,))
    for _ in range(steps):
        optimizer.zero_grad()
        hidden = loop.model[:2](loop.x)
        hidden.retain_grad()
        loss = functional.mse_loss(loop.model[2](hidden), loop.x.sum(1, keepdim=True))
        loss.backward(retain_graph=True)
        loss.backward()
        loop.read(hidden.grad)
        optimizer.step()


def steps_within_the_pass(loop: Loop, steps: int) -> None:
    own = {weight: SGD([weight], lr=LR) for weight in loop.weights}

    def step(weight: torch.Tensor) -> None:
        assert weight.grad is not None
        loop.read(weight.grad.norm())
        own[weight].step()
        own[weight].zero_grad()

    for weight in loop.weights:
        weight.register_post_accumulate_grad_hook(step)
    for _ in range(steps):
        loop.loss().backward()


def looks_at_curvature(loop: Loop, steps: int) -> None:
    optimizer = SGD(loop.weights, lr=LR)
    for _ in range(steps):
        optimizer.zero_grad()
        loop.loss().backward(create_graph=True)
        gradients = list(loop.gradients)
        ones = [torch.ones_like(g) for g in gradients]
        curvature = torch.autograd.grad(gradients, loop.weights, ones)
        for weight, own in zip(loop.weights, curvature, strict=True):
            loop.read(own)
            assert weight.grad is not None
            weight.grad = weight.grad.detach() / (own.abs() + 1.0)
        optimizer.step()


def trains_two_against_each_other(loop: Loop, steps: int) -> None:
    """Each clears the other's gradients; both passes reach both."""
    maker, judge = loop.model[:2], loop.model[2]
    makers, judges = SGD(maker.parameters(), lr=LR), SGD(judge.parameters(), lr=LR)
    for _ in range(steps):
        judges.zero_grad()
        made = maker(loop.x)
        judge(made).square().mean().backward(retain_graph=True)
        loop.read(loop.norm())
        judges.step()
        makers.zero_grad()
        (judge(maker(loop.x)) - 1).square().mean().backward()
        loop.read(loop.norm())
        makers.step()


def computes_again(loop: Loop, steps: int) -> None:
    optimizer = SGD(loop.weights, lr=LR)
    for _ in range(steps):
        optimizer.zero_grad()
        x = loop.x.clone().requires_grad_()
        for _ in range(2):
            output = checkpoint(loop.model, x, use_reentrant=True)
            functional.mse_loss(output, loop.x.sum(1, keepdim=True)).backward()
        loop.read(loop.norm())
        optimizer.step()


def has_rare_rows(loop: Loop, steps: int) -> None:
    """Sparse gradients, of two passes, and complex ones."""
    table = nn.Embedding(6, 4, sparse=True)
    turn = nn.Parameter(torch.ones(4, dtype=torch.complex64))
    optimizer = SGD([*loop.weights, *table.parameters(), turn], lr=LR)
    for _ in range(steps):
        optimizer.zero_grad()
        for rows in (torch.tensor([0, 1, 1]), torch.tensor([1, 3])):
            loop.loss((table(rows) * turn).abs()).backward()
        assert table.weight.grad is not None
        assert turn.grad is not None
        loop.read(table.weight.grad.to_dense())
        loop.read(turn.grad.abs())
        optimizer.step()


PROGRAMS: tuple[Callable[[Loop, int], None], ...] = (
    clips_by_hand,
    clips_by_parts_of_torch,
    clips_twice,
    steps_twice,
    adds_up_and_clips_each,
    makes_gradients_by_hand,
    adds_noise_and_decay,
    clips_adaptively,
    climbs_first,
    climbs_with_a_closure,
    has_a_closure,
    moves_one_part_by_hand,
    trains_on_attacks,
    hooks_gradients,
    steps_within_the_pass,
    looks_at_curvature,
    trains_two_against_each_other,
    computes_again,
    has_rare_rows,
)


def trained(program: Callable[[Loop, int], None], steps: int, height: float = 1.0) -> Run:
    loop = Loop(height)
    program(loop, steps)
    return loop.run


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_that_uses_its_gradients_trains_under_fp16_as_by_itself(
    program: Callable[[Loop, int], None],
) -> None:
    plain = trained(program, 8)
    with under("fp16") as seams:
        scaled = trained(program, 8)
        assert seams.scaling.scale > 1.0
    assert (scaled.moved - plain.moved).norm() < 0.03 * plain.moved.norm()
    assert len(scaled.read) == len(plain.read)
    for ours, own in zip(scaled.read, plain.read, strict=True):
        assert (ours - own).norm() < 0.05 * own.norm() + 1e-6
