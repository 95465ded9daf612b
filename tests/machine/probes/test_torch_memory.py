"""What a program's torch says of its GPUs, over recorded readings."""

from __future__ import annotations

import pytest
import torch

from autotune.machine.probes.torch_memory import torch_gpus
from tests.made import A100, H100, V100
from tests.readings import MIG_GPU, torch_sees, unused


def test_gpus_are_told_in_the_programs_order_with_nvmls_ids_and_whether_they_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seen in ((unused(H100), A100, unused(V100)), (MIG_GPU,)):
        torch_sees(monkeypatch, *seen)
        assert torch_gpus("cuda") == seen


def test_the_gpus_of_a_program_on_the_cpu_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask for their properties would initialize CUDA, which takes memory and seconds."""
    for name in ("device_count", "get_device_properties", "memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: pytest.fail("CUDA was asked"))
    assert torch_gpus("cpu") == ()
