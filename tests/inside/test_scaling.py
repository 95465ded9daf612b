"""fp16 gradients are true wherever a program reads them, whatever it does with them."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.utils.checkpoint import checkpoint

from autotune.inside.micro_batches import EpochShape
from autotune.inside.seams.accumulation import AccumulationSeam
from autotune.inside.seams.scaling import FIRST_SCALE, GROWTH_INTERVAL
from tests.inside.test_precision import under

HEIGHT = 1 / 64  # of losses: at the first scale nothing overflows
LR = 0.1 / HEIGHT


@dataclass
class Run:
    """What one run of a program came to.

    Attributes:
        read: Numbers that the program read of its gradients.
    """

    weights: Sequence[torch.Tensor]
    began: list[torch.Tensor]
    read: list[torch.Tensor] = field(default_factory=list)

    @property
    def moved(self) -> torch.Tensor:
        """By how much the weights have moved."""
        pairs = zip(self.weights, self.began, strict=True)
        return torch.cat([(weight.detach() - began).flatten() for weight, began in pairs])


class Loop:
    """A model with its data; each step of a program calls ``loss``."""

    def __init__(self, height: float = HEIGHT) -> None:
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
        norm: torch.Tensor = torch.stack([g.norm() for g in self.gradients]).norm()
        return norm


def clips_by_hand(loop: Loop, steps: int) -> None:
    optimizer = SGD(loop.weights, lr=LR)
    for _ in range(steps):
        optimizer.zero_grad()
        loop.loss().backward()
        norm = loop.norm()
        loop.read(norm)
        for gradient in loop.gradients:
            gradient.mul_(min(1.0, 0.5 * HEIGHT / (float(norm) + 1e-6)))
        optimizer.step()


def clips_by_parts_of_torch(loop: Loop, steps: int) -> None:
    optimizer = AdamW(loop.weights, lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=False)
        loop.loss().backward()
        norm = nn.utils.get_total_norm(loop.gradients)
        loop.read(norm)
        nn.utils.clip_grads_with_norm_(loop.weights, 0.5 * HEIGHT, norm)
        optimizer.step()


def clips_twice(loop: Loop, steps: int) -> None:
    """Each of two optimizers after a clipping of all, and of its own by value."""
    first, second = SGD(loop.weights[:2], lr=LR), SGD(loop.weights[2:], lr=LR)
    for _ in range(steps):
        loop.model.zero_grad()
        loop.loss().backward()
        loop.read(nn.utils.clip_grad_norm_(loop.weights, 0.5 * HEIGHT))
        nn.utils.clip_grad_value_(loop.weights[:2], 0.05 * HEIGHT)
        first.step()
        loop.read(nn.utils.clip_grad_norm_(loop.weights[2:], 0.25 * HEIGHT))
        second.step()


def steps_twice(loop: Loop, steps: int) -> None:
    """Two steps by the gradients of one pass, with clipping before each."""
    optimizer = SGD(loop.weights, lr=LR)
    for _ in range(steps):
        optimizer.zero_grad()
        loop.loss().backward()
        for _ in range(2):
            nn.utils.clip_grad_norm_(loop.weights, 0.5 * HEIGHT)
            optimizer.step()


def adds_up_and_clips_each(loop: Loop, steps: int) -> None:
    """Several passes before a step, the gradients clipped after each of them."""
    optimizer = SGD(loop.weights, lr=LR)
    for _ in range(steps):
        for part in loop.x.chunk(4):
            (loop.loss(part) / 4).backward()
            loop.read(nn.utils.clip_grad_norm_(loop.weights, 0.5 * HEIGHT))
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
    draws = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        loop.loss().backward()
        for weight in loop.weights:
            assert weight.grad is not None
            noise = torch.randn(weight.shape, generator=draws)
            weight.grad += HEIGHT * (0.01 * weight.detach() + 0.1 * noise)
        optimizer.step()


def clips_adaptively(loop: Loop, steps: int) -> None:
    optimizer = SGD(loop.weights, lr=LR)
    for _ in range(steps):
        optimizer.zero_grad()
        loop.loss().backward()
        for weight in loop.weights:
            assert weight.grad is not None
            most = 0.2 * HEIGHT * weight.detach().norm().clamp(min=1e-3)
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
    optimizer = Adam(loop.weights, lr=0.1)

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
        (loop.height * (loop.model(loop.x + nudge) ** 2).mean()).backward()
        assert nudge.grad is not None
        loop.read(nudge.grad)
        optimizer.zero_grad()
        loop.loss(loop.x + (x.grad + 0.1 * nudge.grad) / HEIGHT).backward()
        optimizer.step()


def clamp_in_place(gradient: torch.Tensor) -> None:
    gradient.clamp_(-0.1 * HEIGHT, 0.1 * HEIGHT)


def hooks_gradients(loop: Loop, steps: int) -> None:
    """Hooks that clamp, one that changes in place, and readers of activations' gradients."""
    optimizer = SGD(loop.weights, lr=LR)
    for weight in loop.weights[:2]:
        weight.register_hook(lambda gradient: gradient.clamp(-0.01 * HEIGHT, 0.01 * HEIGHT))
    loop.weights[2].register_hook(clamp_in_place)
    loop.model[2].register_full_backward_hook(lambda _, given, __: loop.read(next(iter(given))))
    loop.model[1].register_full_backward_pre_hook(lambda _, given: (next(iter(given)) * 0.5,))
    for _ in range(steps):
        optimizer.zero_grad()
        hidden = loop.model[:2](loop.x)
        hidden.retain_grad()
        loss = loop.height * loop.model[2](hidden).sub(1).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        loop.read(hidden.grad)
        optimizer.step()


def steps_within_the_pass(loop: Loop, steps: int) -> None:
    own: dict[torch.Tensor, SGD] = {weight: SGD([weight], lr=LR) for weight in loop.weights}
    norms: dict[torch.Tensor, torch.Tensor] = {}

    def step(weight: torch.Tensor) -> None:
        assert weight.grad is not None
        norms[weight] = weight.grad.norm()
        own[weight].step()
        own[weight].zero_grad()

    for weight in loop.weights:
        weight.register_post_accumulate_grad_hook(step)
    for _ in range(steps):
        loop.loss().backward()
        loop.read(torch.stack([norms[weight] for weight in loop.weights]))


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
            weight.grad = weight.grad.detach() / (own.abs() / HEIGHT + 1.0)
        optimizer.step()


def trains_two_against_each_other(loop: Loop, steps: int) -> None:
    """Each clears the other's gradients; both passes reach both."""
    maker, judge = loop.model[:2], loop.model[2]
    makers, judges = SGD(maker.parameters(), lr=LR), SGD(judge.parameters(), lr=LR)
    for _ in range(steps):
        judges.zero_grad()
        made = maker(loop.x)
        (loop.height * judge(made).square().mean()).backward(retain_graph=True)
        loop.read(loop.norm())
        judges.step()
        makers.zero_grad()
        (loop.height * (judge(maker(loop.x)) - 1).square().mean()).backward()
        loop.read(loop.norm())
        makers.step()


def computes_again(loop: Loop, steps: int) -> None:
    optimizer = SGD(loop.weights, lr=LR)
    for _ in range(steps):
        optimizer.zero_grad()
        x = loop.x.clone().requires_grad_()
        for _ in range(2):
            output = checkpoint(loop.model, x, use_reentrant=True)
            (loop.height * functional.mse_loss(output, loop.x.sum(1, keepdim=True))).backward()
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


def trained(program: Callable[[Loop, int], None], steps: int, height: float = HEIGHT) -> Run:
    loop = Loop(height)
    program(loop, steps)
    return loop.run


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph")  # one program means to
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_that_uses_its_gradients_trains_under_fp16_as_by_itself(
    program: Callable[[Loop, int], None],
) -> None:
    plain = trained(program, 6)
    with under("fp16") as seams:
        scaled = trained(program, 6)
        assert seams.scaling.scale > 1.0
    assert (scaled.moved - plain.moved).norm() < 0.03 * plain.moved.norm()
    assert len(scaled.read) == len(plain.read)
    for ours, own in zip(scaled.read, plain.read, strict=True):
        assert (ours - own).norm() < 0.05 * own.norm() + 1e-6


OVERFLOWING: tuple[Callable[[Loop, int], None], ...] = (
    clips_by_hand,
    adds_up_and_clips_each,
    climbs_first,
    climbs_with_a_closure,
    has_a_closure,
    moves_one_part_by_hand,
    steps_within_the_pass,
    trains_two_against_each_other,
)


@pytest.mark.parametrize("program", OVERFLOWING, ids=lambda program: program.__name__)
def test_a_step_whose_gradients_overflow_changes_no_weight(
    program: Callable[[Loop, int], None],
) -> None:
    """Whatever the program makes of its gradients, which are 0 then."""
    with under("fp16"):
        run = trained(program, 1, height=1e4)
    assert not run.moved.any()
    assert all(read.isfinite().all() for read in run.read)


def test_the_scale_comes_down_until_gradients_fit() -> None:
    """Also where the program makes no steps meanwhile."""
    with under("fp16") as seams:
        loop = Loop(height=1e4)
        for _ in range(20):
            loop.model.zero_grad()
            loop.loss().backward()
        assert 0 < seams.scaling.scale < FIRST_SCALE
    assert loop.norm() > 0


def test_the_scale_grows_after_many_steps_without_overflow() -> None:
    """Steps count, however many passes they have."""
    with under("fp16") as seams:
        weight = nn.Parameter(torch.ones(1))
        optimizer = SGD([weight], lr=0.0)
        for _ in range(GROWTH_INTERVAL + 1):
            assert seams.scaling.scale == FIRST_SCALE
            weight.sum().backward()
            weight.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        weight.sum().backward()
        assert seams.scaling.scale == 2 * FIRST_SCALE


def test_an_overflow_in_one_micro_batch_leaves_out_the_step_of_all() -> None:
    with under("fp16"):
        loop = Loop()
        optimizer = SGD(loop.weights, lr=LR)
        for height in (1.0, 1e6, 1.0):
            (height * loop.loss()).backward()
        optimizer.step()
        assert not loop.run.moved.any()
        optimizer.zero_grad()
        loop.loss().backward()
        optimizer.step()
        assert loop.run.moved.any(), "the next one is made"


def test_one_optimizers_overflow_leaves_the_other_its_step() -> None:
    with under("fp16"):
        loop, other = Loop(), Loop()
        own, others = SGD(loop.weights, lr=LR), SGD(other.weights, lr=LR)
        loop.loss().backward()
        (1e6 * other.loss()).backward()
        own.step()
        others.step()
    assert loop.run.moved.any()
    assert not other.run.moved.any()


def test_a_scaler_of_the_programs_own_goes_with_a_fused_optimizer() -> None:
    def train() -> torch.Tensor:
        loop = Loop()
        optimizer, scaler = Adam(loop.weights, lr=0.1), torch.amp.GradScaler("cpu")
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output = loop.model(loop.x)
            scaler.scale(HEIGHT * output.float().sub(1).square().mean()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(loop.weights, 0.5 * HEIGHT)
            scaler.step(optimizer)
            scaler.update()
        return loop.run.moved

    plain = train()
    with under("fp16", program_autocast=True, program_scaler=True) as seams:
        seams.optimizer.use_implementation("fused")
        assert (train() - plain).norm() < 0.03 * plain.norm()


def ignore(_module: nn.Module, _before: Any, _after: Any) -> None:
    """A hook of a module."""


def test_a_module_with_hooks_is_saved_with_the_programs_own() -> None:
    with under("fp16"):
        module = nn.Linear(2, 2)
        module.register_full_backward_hook(ignore)
        file = io.BytesIO()
        torch.save(module, file)
        copied = copy.deepcopy(module)
    assert next(iter(copied._backward_hooks.values())) is not ignore, "a copy trains as well"
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    assert next(iter(saved._backward_hooks.values())) is ignore


def test_what_torch_refuses_it_refuses_under_scaling_too() -> None:
    with under("fp16"):
        with pytest.raises(RuntimeError, match="only for scalar outputs"):
            nn.Parameter(torch.ones(2)).backward()
        loop = Loop()
        loss = loop.loss()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        assert loop.norm() < 10 * HEIGHT, "a pass that failed leaves gradients true"


def test_gathered_micro_batches_have_true_gradients_and_an_overflow_leaves_out_their_step() -> None:
    def train(accumulation: AccumulationSeam, heights: Sequence[float]) -> Run:
        loop = Loop()
        optimizer = SGD(loop.weights, lr=LR)
        for number, height in enumerate(heights, start=1):
            accumulation.begin(number, EpochShape())
            (height * loop.loss(loop.x.chunk(2)[number % 2])).backward()
            loop.read(nn.utils.clip_grad_norm_(loop.weights, 0.5 * HEIGHT))
            optimizer.step()
            optimizer.zero_grad()
        return loop.run

    runs = []
    for precision in ("fp32", "fp16"):
        with under(precision, accumulation_steps=2) as seams:
            runs.append(train(seams.accumulation, [1.0] * 6))
            if precision == "fp16":
                assert not train(seams.accumulation, [1e6, 1.0]).moved.any()
                assert train(seams.accumulation, [1.0, 1.0]).moved.any()
    plain, scaled = runs
    assert (scaled.moved - plain.moved).norm() < 0.03 * plain.moved.norm()
    assert torch.stack(scaled.read).tolist() == pytest.approx(
        torch.stack(plain.read).tolist(), rel=0.05
    )
