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

from autotune.inside.listener import Listener
from autotune.inside.seam_set import SeamSet
from autotune.inside.steering import Steering
from autotune.program.applied_config import AppliedConfig, ProgramTraits
from autotune.program.config import Config
from autotune.program.lr import LrRule
from tests import gpu_fakes
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
    """A linear layer that keeps the dtype of what it computed, and of how many samples."""

    def __init__(self, inputs: int = 4) -> None:
        super().__init__()
        self.inner = nn.Linear(inputs, 1)
        self.dtype: torch.dtype | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        self.dtype, self.samples = y.dtype, len(x)
        return y


def own_step(model: nn.Module) -> torch.dtype | None:
    """One forward pass of a program with an autocast region of its own."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.ones(2, 4))
    return model.dtype if isinstance(model, Spy) else None


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


@pytest.mark.parametrize("program_autocast", [False, True])
@pytest.mark.parametrize("devices", ["data_parallel", "single"])
def test_replicas_compute_in_the_format_that_is_chosen(
    devices: str, monkeypatch: pytest.MonkeyPatch, *, program_autocast: bool
) -> None:
    """Torch's threads for them know that autocast is on, and take its default, on a CPU bf16.

    The replicas are the program's, or autotune's.
    """
    monkeypatch.setattr(nn, "DataParallel", gpu_fakes.Replicated)
    spy, is_own = Spy(), devices == "single"
    model = nn.DataParallel(spy) if is_own else spy
    baseline = Config({"precision": "bf16" if program_autocast else "fp32", "devices": "single"})
    traits = ProgramTraits("cpu", program_autocast=program_autocast, replicas=2 * is_own)
    applied = AppliedConfig(
        baseline.replace(precision="fp16", devices=devices), baseline, traits, LrRule.NONE
    )
    seams = SeamSet(None, None)
    steering = Steering(seams)
    steering.apply(applied)
    with installed(seams):
        optimizer = SGD(spy.parameters(), 0.1)  # models that nothing trains have no replicas
        own_step(model) if program_autocast else model(torch.ones(2, 4))
        assert (spy.dtype, spy.samples) == (torch.float16, 1)
        steering.apply(replace(applied, config=applied.config.replace(precision="fp32")), applied)
        own_step(model) if program_autocast else model(torch.ones(2, 4))
        assert (spy.dtype, spy.samples) == (torch.float32, 1)
    del optimizer


def test_the_programs_format_is_that_of_its_own_region() -> None:
    seams = SeamSet(Listener(), None)
    with installed(seams), torch.autocast("cpu", dtype=torch.float16):
        gpu_fakes.Replicated(Spy())(torch.ones(2, 4))
    assert seams.model.autocast.own_dtype == "float16"


@pytest.mark.gpu
def test_replicas_on_two_gpus_compute_in_bf16() -> None:
    """The test before shows it with replicas on the CPU; this has never run."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    seen: list[tuple[torch.device, torch.dtype]] = []

    class Spy(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output = super().forward(x)
            seen.append((output.device, output.dtype))
            return output

    baseline, traits = Config({"precision": "fp32"}), ProgramTraits("cuda", replicas=2)
    applied = AppliedConfig(baseline.replace(precision="bf16"), baseline, traits)
    seams = SeamSet(None, None)
    Steering(seams).apply(applied)
    with installed(seams):
        assert nn.DataParallel(Spy(4, 1).cuda())(torch.ones(64, 4)).dtype is torch.float32
    assert {device.index for device, _ in seen} == {*range(torch.cuda.device_count())}
    assert {dtype for _, dtype in seen} == {torch.bfloat16}
