"""fp16 gradients are true after each backward pass; what would read scaled ones is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import LBFGS, SGD, Adam, AdamW
from torch.utils.data import DataLoader, TensorDataset

from autotune.inside.micro_batches import EpochShape
from autotune.inside.seams.accumulation import AccumulationSeam
from autotune.program.profile import Profile
from tests.inside.test_precision import under
from tests.watching import Watching

HEIGHT = 1 / 64  # of losses: at the first scale nothing overflows
LR = 0.1 / HEIGHT
FIRST_SCALE = 2.0**16  # GradScaler's default


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


def clips_by_parts_of_torch(loop: Loop, steps: int) -> None:
    optimizer = AdamW(loop.weights, lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=False)
        loop.loss().backward()
        norm = nn.utils.get_total_norm(loop.gradients)
        loop.read(norm)
        nn.utils.clip_grads_with_norm_(loop.weights, 0.5 * HEIGHT, norm)
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


TRAINED: tuple[Callable[[Loop, int], None], ...] = (
    clips_by_parts_of_torch,
    adds_up_and_clips_each,
    has_a_closure,
    trains_two_against_each_other,
)


def trained(program: Callable[[Loop, int], None], steps: int, height: float = HEIGHT) -> Run:
    loop = Loop(height)
    program(loop, steps)
    return loop.run


@pytest.mark.parametrize("program", TRAINED, ids=lambda program: program.__name__)
def test_a_program_that_uses_its_gradients_trains_under_fp16_as_by_itself(
    program: Callable[[Loop, int], None],
) -> None:
    plain = trained(program, 6)
    with under("fp16") as seams:
        scaled = trained(program, 6)
        assert seams.steps.scaling.scale == FIRST_SCALE
    assert (scaled.moved - plain.moved).norm() < 0.03 * plain.moved.norm()
    assert len(scaled.read) == len(plain.read)
    for ours, own in zip(scaled.read, plain.read, strict=True):
        assert (ours - own).norm() < 0.05 * own.norm() + 1e-6
    with under("fp16"):
        overflowed = trained(program, 1, height=1e4)
    assert not overflowed.moved.any(), "whatever the program makes of its gradients, which are 0"
    assert all(read.isfinite().all() for read in overflowed.read)


def test_gathered_micro_batches_have_true_gradients_and_an_overflow_leaves_out_their_step() -> None:
    def train(accumulation: AccumulationSeam, heights: Sequence[float]) -> Run:
        loop = Loop()
        optimizer = SGD(loop.weights, lr=LR)
        for number, height in enumerate(heights, start=1):
            accumulation.groups.hand_out(number, EpochShape())
            (height * loop.loss(loop.x.chunk(2)[number % 2])).backward()
            loop.read(nn.utils.clip_grad_norm_(loop.weights, 0.5 * HEIGHT))
            optimizer.step()
            optimizer.zero_grad()
        return loop.run

    runs = []
    for precision in ("fp32", "fp16"):
        with under(precision, accumulation_steps=2) as seams:
            runs.append(train(seams.steps.accumulation, [1.0] * 6))
            if precision == "fp16":
                assert not train(seams.steps.accumulation, [1e6, 1.0]).moved.any()
                assert train(seams.steps.accumulation, [1.0, 1.0]).moved.any()
    plain, scaled = runs
    assert (scaled.moved - plain.moved).norm() < 0.03 * plain.moved.norm()
    assert torch.stack(scaled.read).tolist() == pytest.approx(
        torch.stack(plain.read).tolist(), rel=0.05
    )


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


def hooks_a_weight(loop: Loop) -> None:
    loop.weights[0].register_hook(lambda gradient: gradient.clamp(-1, 1))
    loop.loss().backward()


def attacks(loop: Loop) -> None:
    loop.loss(loop.x.clone().requires_grad_()).backward()


def looks_at_curvature(loop: Loop) -> None:
    loop.loss().backward(create_graph=True)


def steps_by_lbfgs(loop: Loop) -> None:
    LBFGS(loop.weights).step(loop.loss)


class Mine(SGD):
    """What its step does with a closure is not known."""


def has_its_own_optimizer(loop: Loop) -> None:
    Mine(loop.weights, lr=LR).step(loop.loss)


def hooks_an_activation(loop: Loop) -> None:
    hidden = loop.model[:2](loop.x)
    hidden.register_hook(lambda _: None)
    loop.model[2](hidden).mean().backward()


REFUSED: dict[Callable[[Loop], None], str] = {
    hooks_a_weight: "has a hook on the gradient of a parameter",
    attacks: r"no optimizer trains a tensor of shape \(16, 4\) that gets a gradient",
    looks_at_curvature: r"differentiates gradients again \(create_graph=True\)",
    steps_by_lbfgs: "LBFGS may call the program's closure repeatedly",
    has_its_own_optimizer: "Mine may call the program's closure repeatedly",
}


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph")  # one program means to
@pytest.mark.parametrize("program", REFUSED, ids=lambda program: program.__name__)
def test_a_program_that_would_read_scaled_gradients_is_refused(
    program: Callable[[Loop], None],
) -> None:
    with under("fp16") as seams:
        loop = Loop()
        optimizer = SGD(loop.weights, lr=LR)
        expected = f"^fp16 needs scaled losses, but .*{REFUSED[program]}$"
        with pytest.raises(RuntimeError, match=expected):
            program(loop)
        assert optimizer in seams.steps.optimizer.optimizers
    assert not loop.run.moved.any()


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph")
@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (attacks, "no optimizer trains a tensor"),
        (looks_at_curvature, "create_graph"),
        (hooks_an_activation, "register_hook"),
        (lambda loop: loop.loss().backward(), ""),
    ],
)
def test_the_first_untouched_steps_show_what_speaks_against_scaling(
    program: Callable[[Loop], None], expected: str
) -> None:
    loop = Loop()

    def step(x: torch.Tensor) -> torch.Tensor:
        program(loop)
        loss: torch.Tensor = loop.model(x.flatten(1)[:, :4]).mean()
        return loss

    against = observed(loop.model, step).loop.against_scaling
    assert (expected in against) if expected else not against
