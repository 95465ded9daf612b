"""What holds on a CPU holds on a GPU: each test runs on both, where there is one.

Its sizes and speeds are the business of ``benchmarks/gpu``.
"""

from pathlib import Path

import pytest
import torch
from torch import nn

from autotune.inside.seam_set import SeamSet
from autotune.inside.steering import Steering
from autotune.knobs.space.spacefile import load
from autotune.machine import hardware
from autotune.measurement.learning.training_trace import Sameness
from autotune.program.applied_config import AppliedConfig, ProgramTraits
from autotune.program.config import Config
from tests.gpu_fakes import differences_from_a_device
from tests.rigging import open_rig
from tests.test_self_check import Runs, agreement
from tests.watching import installed

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


@pytest.mark.slow
def test_data_parallel_one_device_and_ranks_train_and_save_the_same(
    tmp_path: Path, device: str
) -> None:
    """The CPU counts as two devices, see ``tests/gpu_fakes.py``; on GPUs this has never run."""
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    with open_rig(tmp_path, "replicated.py", space="devices") as opened:
        assert opened.base.baseline["devices"] == "data_parallel"
        runs = Runs(tmp_path, opened, "replicated.py")
    batch = int(opened.base.baseline["batch_size"])
    written = runs.trace(), runs.trace(shakes=1)
    for devices, ranks in (("single", 1), ("ddp-2", 2)):
        theirs = runs.trace(changes={"devices": devices, "batch_size": batch // ranks})
        assert theirs.saved == written[0].saved != (), "the keys and sizes of what is saved"
        found = agreement(written, theirs, same_batches=ranks == 1)
        assert found.sameness in {Sameness.BITS, Sameness.ROUNDING}, (devices, found)


@pytest.mark.gpu
def test_replicas_on_two_gpus_compute_in_bf16() -> None:
    """``tests/inside/test_precision.py`` shows it with replicas on the CPU; this has never run."""
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


@pytest.mark.gpu
def test_the_gpus_are_those_of_torch() -> None:
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
