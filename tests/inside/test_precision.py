"""Precision: the program's own autocast is steered, and fp16 gradients are scaled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.backends import cuda
from torch.optim import SGD, Optimizer

from autotune.inside.seam_set import SeamSet
from autotune.inside.steering import Steering
from autotune.program.applied_config import AppliedConfig, ProgramTraits
from autotune.program.config import Config
from autotune.program.lr import LrRule


@contextmanager
def under(
    precision: str,
    *,
    program_autocast: bool = False,
    program_scaler: bool = False,
    accumulation_steps: int = 1,
) -> Iterator[SeamSet]:
    """SeamSet as ``autotune run`` installs them for a program on the CPU."""
    baseline = Config({"precision": "bf16" if program_autocast else "fp32"})
    applied = AppliedConfig(
        Config({"precision": precision}),
        baseline,
        ProgramTraits("cpu", program_autocast=program_autocast, program_scaler=program_scaler),
        LrRule.NONE,
    )
    seams = SeamSet(None, None)
    Steering(seams).apply(applied)
    seams.accumulation.steps = accumulation_steps
    seams.install()
    try:
        yield seams
    finally:
        seams.remove()


@pytest.mark.parametrize(("device", "is_tf32"), [("cuda", True), ("cpu", False)])
def test_tf32_is_allowed_where_the_program_computes_on_cuda(*, device: str, is_tf32: bool) -> None:
    """The program's device says it: to ask for a GPU would be seen by the program."""
    traits = ProgramTraits(device)
    applied = AppliedConfig(
        Config({"precision": "tf32"}), Config({"precision": "fp32"}), traits, LrRule.NONE
    )
    seams = SeamSet(None, None)
    Steering(seams).apply(applied)
    try:
        assert cuda.matmul.allow_tf32 == is_tf32
    finally:
        Steering(seams).apply(replace(applied, config=applied.baseline), since=applied)


class Spy(nn.Module):
    """A linear layer that keeps the dtype of what it computed."""

    def __init__(self, inputs: int = 4) -> None:
        super().__init__()
        self.inner = nn.Linear(inputs, 1)
        self.dtype: torch.dtype | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        self.dtype = y.dtype
        return y


def own_step(model: Spy) -> torch.dtype | None:
    """One forward pass of a program with an autocast region of its own."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.ones(2, 4))
    return model.dtype


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("fp16", torch.float16)])
def test_the_programs_own_autocast_computes_in_what_is_asked(
    precision: str, dtype: torch.dtype
) -> None:
    model = Spy()
    with under(precision, program_autocast=True):
        assert own_step(model) is dtype
        assert own_step(model) is dtype
    assert own_step(model) is torch.bfloat16


def test_regions_that_the_program_disables_stay_disabled() -> None:
    model = Spy()
    with under("fp16", program_autocast=True), torch.autocast("cpu", enabled=False):
        model(torch.ones(2, 4))
    assert model.dtype is torch.float32


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)],
)
def test_a_program_without_autocast_computes_in_what_is_asked(
    precision: str, dtype: torch.dtype
) -> None:
    model = Spy()
    with under(precision):
        assert model(torch.ones(2, 4)).dtype is torch.float32, "the loss is fp32"
    assert model.dtype is dtype


def train(
    steps: int, *, clip: float | None = None, optimizers: int = 1, overflow_at: int = -1
) -> tuple[list[Spy], list[float]]:
    """Train some models, one optimizer each; return them and the norms that were clipped."""
    torch.manual_seed(0)
    models = [Spy() for _ in range(optimizers)]
    own: list[Optimizer] = [SGD(model.parameters(), lr=100.0) for model in models]
    x = torch.randn(16, 4)
    norms = []
    for number in range(steps):
        for model, optimizer in zip(models, own, strict=True):
            optimizer.zero_grad()
            loss = 1e-3 * (model(x) - x.sum(1, keepdim=True)).square().mean()
            if number == overflow_at:
                loss = loss * float("inf")
            loss.backward()
            if clip is not None:
                norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
                norms.append(float(norm))
            optimizer.step()
    return models, norms


def close(one: list[Spy], other: list[Spy], rtol: float) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a.inner.weight, b.inner.weight, rtol=rtol, atol=1e-3)


@pytest.mark.parametrize("clip", [None, 1e-4])
@pytest.mark.parametrize("optimizers", [1, 2])
def test_scaled_gradients_train_as_unscaled_ones(clip: float | None, optimizers: int) -> None:
    """Also where the program clips: it clips what it means to clip."""
    plain, norms = train(20, clip=clip, optimizers=optimizers)
    with under("fp16") as seams:
        scaled, scaled_norms = train(20, clip=clip, optimizers=optimizers)
        assert seams.scaling.scale > 1.0
    close(plain, scaled, rtol=0.02)
    assert scaled_norms == pytest.approx(norms, rel=0.05)


def test_an_overflow_skips_the_step_and_lowers_the_scale() -> None:
    with under("fp16") as seams:
        before, _ = train(3)
        scale = seams.scaling.scale
        after, _ = train(4, overflow_at=3)
        one_more = [SGD(m.parameters(), lr=0.0) for m in after]
        after[0](torch.ones(1, 4)).sum().backward()  # the scale changes where a new pass begins
        assert seams.scaling.scale == scale / 2
        assert one_more
    close(before, after, rtol=0.0)
    assert all(p.isfinite().all() for p in after[0].parameters())


def test_small_gradients_survive_by_scaling() -> None:
    """The smallest fp16 number is 6e-8; this gradient is 1e-8, and passes through fp16 products."""
    first, second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    model = nn.Sequential(first, second)
    for layer in (first, second):
        nn.init.constant_(layer.weight, 1.0)

    def gradient() -> float:
        optimizer.zero_grad()
        (model(torch.ones(1, 1)) * 1e-8).sum().backward()
        assert first.weight.grad is not None
        return float(first.weight.grad)

    with under("fp16") as seams:
        optimizer = SGD(model.parameters(), lr=0.0)
        gradient()
        optimizer.step()
        assert gradient() == pytest.approx(1e-8, rel=0.02)
        seams.scaling.set_enabled(enabled=False)
        assert gradient() == 0.0


def test_a_program_with_a_scaler_of_its_own_keeps_it() -> None:
    with under("fp16", program_autocast=True, program_scaler=True) as seams:
        assert not seams.scaling.is_needed


def test_a_closure_is_computed_scaled_and_stepped_once() -> None:
    def fit(steps: int) -> Any:
        torch.manual_seed(0)
        model = Spy()
        optimizer = SGD(model.parameters(), lr=100.0)
        x = torch.randn(8, 4)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = 1e-3 * (model(x) - 1).square().mean()
            loss.backward()
            return loss.detach()

        return [model], [float(optimizer.step(closure)) for _ in range(steps)]

    plain, losses = fit(10)
    with under("fp16"):
        scaled, scaled_losses = fit(10)
    close(plain, scaled, rtol=0.02)
    assert scaled_losses == pytest.approx(losses, rel=0.02)
