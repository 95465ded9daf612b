"""Precision: the program's own autocast is steered, and fp16 gradients are scaled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.backends import cuda, cudnn
from torch.optim import SGD

from autotune.inside.seam_set import SeamSet
from autotune.inside.steering import Steering
from autotune.program.applied_config import AppliedConfig, ProgramTraits
from autotune.program.config import Config
from autotune.program.lr import LrRule
from tests.watching import installed


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
    seams.steps.accumulation.steps = accumulation_steps
    with installed(seams):
        yield seams


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
    assert cudnn.allow_tf32, "fp32 leaves convolutions as PyTorch has them, and says so"


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
        seams.steps.scaling.set_enabled(enabled=False)
        assert gradient() == 0.0


def test_a_program_with_a_scaler_of_its_own_keeps_it() -> None:
    with under("fp16", program_autocast=True, program_scaler=True) as seams:
        assert not seams.steps.scaling.is_needed
