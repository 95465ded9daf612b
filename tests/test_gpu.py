"""What holds on a CPU holds on a GPU: each test runs on both, where there is one.

Its sizes and speeds are the business of ``benchmarks/gpu``.
"""

from pathlib import Path

import pytest

from autotune.knobs.space.spacefile import load
from autotune.machine import hardware
from tests.gpu_fakes import differences_from_a_device
from tests.rigging import open_rig

PROGRAMS = Path(__file__).parents[1] / "benchmarks" / "gpu" / "programs"
CONV = str(PROGRAMS / "conv.py"), "--side", "8", "--channels", "8", "--layers", "3"
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name the device on which a program that prefers a GPU trains."""
    if request.param == "cpu":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return str(request.param)


@pytest.mark.slow
def test_each_live_setting_that_is_offered_trains(tmp_path: Path, device: str) -> None:
    with open_rig(tmp_path, *CONV) as opened:
        assert opened.profile.device == device
        space = load("default").resolve(hardware.detect(), opened.profile)
        live = space.domains.keys() - space.restart
        assert {"workers", "batch_size", "precision", "memory_format"} <= live
        for knob in sorted(live):
            measured = opened.measured(**{knob: space.domains[knob].values[-1]})
            assert (measured.memory.device_reserved_bytes is not None) == (device == "cuda"), knob


@pytest.mark.gpu
def test_the_gpus_are_those_of_torch() -> None:
    import torch

    real = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())]
    for gpu, one in zip(hardware.detect().gpus, real, strict=True):
        assert gpu.name == one.name
        assert gpu.compute_capability in {(one.major, one.minor), None}
        # torch leaves out what the driver keeps to itself
        assert gpu.memory_bytes == pytest.approx(one.total_memory, rel=0.05)


@pytest.mark.gpu
def test_the_fakes_answer_in_the_form_of_the_device() -> None:
    assert differences_from_a_device(0) == []


@pytest.mark.gpu
def test_a_gpus_memory_is_seen_and_a_hidden_gpu_is_not_used(tmp_path: Path) -> None:
    holds = str(PROGRAMS / "holds.py")
    with open_rig(tmp_path / "gpu", holds) as opened:
        reserved = opened.measured().memory.device_reserved_bytes
        assert reserved == pytest.approx(2 << 30, rel=0.1)
    with open_rig(tmp_path / "cpu", holds, "--gpu", "", "--gib", "0.01") as opened:
        assert opened.profile.device == "cpu"
