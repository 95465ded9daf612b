"""Facts about the machine: quotas of containers, visible GPUs, and what two machines differ in."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from autotune.machine.hardware import Gpu, cpu_quota, detect, visible_gpus
from tests.gpu_fakes import GB10, FakeNvml, unused
from tests.machine.test_cgroups import tree
from tests.made import A100, GIB, H100, HARDWARE, V100, make_hardware

CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("10000 100000\n", 1),
        ("150000 100000\n", 2),
        ("max 100000\n", math.inf),
        (f"{1024 * 100000} 100000\n", math.inf),
        ("", math.inf),
    ],
)
def test_a_quota_limits_the_cores_and_part_of_a_core_counts_as_one(
    tmp_path: Path, text: str, cores: float
) -> None:
    proc = tree(tmp_path, "0::/\n", "/ cg cgroup2 rw", {"cg/cpu.max": text})
    assert cpu_quota(proc) == min(CORES, cores)


GPUS = (V100, A100, H100)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, GPUS),
        ("", ()),
        ("0", (V100,)),
        ("2,0", (H100, V100)),
        (" 1 , 2 ", (A100, H100)),
        (A100.uuid, (A100,)),
        (H100.uuid[:-1] + "0", (H100,)),
        (f"{H100.uuid},{V100.uuid}", (H100, V100)),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("3", ()),
        ("0,7,1", (V100,)),
        ("0,-1,1", (V100,)),
    ],
)
def test_visible_gpus_are_those_that_cuda_would_show_in_its_order(
    visible: str | None, expected: tuple[Gpu, ...]
) -> None:
    assert visible_gpus(GPUS, visible) == expected


def test_each_fact_that_decides_speed_is_a_difference_and_no_other() -> None:
    gpus = make_hardware(gpus=(A100,))
    none, now = "GPUs: none during the search", "NVIDIA A100-SXM4-40GB"
    torch = {"python": "3.11.7", "torch": "2.12.0"}
    unread = make_hardware(shm_bytes=1, warnings=("NVML is silent",))
    for before, after, expected in (
        (HARDWARE, unread, []),
        (gpus, unread, []),
        (HARDWARE, make_hardware(cpu_name="X"), ["CPU: AMD EPYC 7B13 during the search, X now"]),
        (HARDWARE, make_hardware(cpu_quota=4), ["cores: 2 during the search, 4 now"]),
        (HARDWARE, gpus, [f"{none}, {now} now"]),
        (gpus, HARDWARE, [f"GPUs: {now} during the search, none now"]),
        (HARDWARE, make_hardware(versions=torch), ["torch: 2.11.0 during the search, 2.12.0 now"]),
    ):
        assert before.differences(after) == expected


def test_measurements_of_machines_with_one_fingerprint_may_be_pooled() -> None:
    own, driver = HARDWARE.fingerprint, {**HARDWARE.versions, "NVIDIA driver": "550.54"}
    gpu = make_hardware(gpus=(A100,))
    for same in (make_hardware(shm_bytes=1), make_hardware(memory_bytes=2**40)):
        assert same.fingerprint == own
    others = [
        make_hardware(cpu_name="X"),
        make_hardware(cpu_quota=4),
        make_hardware(versions={**HARDWARE.versions, "torch": "2.12.0"}),
        make_hardware(versions={**HARDWARE.versions, "python": "3.12.1"}),
        gpu,
        make_hardware(gpus=(A100, A100)),
        make_hardware(gpus=(A100,), versions=driver),
    ]
    found = {own, *(one.fingerprint for one in others)}
    assert len(found) == len(others) + 1
    # which of equal GPUs it is, and how full it was
    full = replace(A100, uuid="GPU-1", usable_bytes=1)
    assert make_hardware(gpus=(full,)).fingerprint == gpu.fingerprint
    assert make_hardware(gpus=(A100, A100)).named == (
        "2x NVIDIA A100-SXM4-40GB, AMD EPYC 7B13, 2 cores"
    )


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeNvml]:
    """Let a driver answer."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def answer(*gpus: Gpu, **how: Any) -> FakeNvml:
        return FakeNvml(gpus, **how).install(monkeypatch)

    return answer


def test_gpus_are_read_and_what_one_does_not_tell_is_unknown(
    nvml: Callable[..., FakeNvml],
) -> None:
    silent = replace(A100, compute_capability=None)
    nvml(A100, H100)
    assert detect().gpus == (A100, H100)
    nvml(GB10, silent)
    hardware = detect()
    assert (hardware.gpus, hardware.warnings) == ((GB10, silent), ())
    assert hardware.compute_capability is None, "the lowest may be the one that is unknown"
    assert hardware.capacity_bytes(on_device=True) == A100.memory_bytes
    assert hardware.versions["torch"] == metadata.version("torch")


def test_a_driver_that_does_not_answer_is_a_doubt_and_not_an_error(
    nvml: Callable[..., FakeNvml], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for answers_until in ("nvmlInit", "nvmlDeviceGetHandleByIndex"):
        readings = nvml(A100, fails_at=answers_until)
        hardware = detect()
        assert hardware.gpus == ()
        assert "GPU facts are unknown" in " ".join(hardware.warnings)
        assert not readings.users
    readings = nvml(V100, A100, H100)
    readings.lost = frozenset({A100.uuid})
    hardware = detect()
    assert hardware.gpus == (V100, H100)
    assert hardware.warnings[0].startswith("GPU 1 does not answer (GPU is lost)")
    # A container to which only the capability "compute" of the driver was given
    node = tmp_path / "nvidiactl"
    monkeypatch.setattr("autotune.machine.hardware.DRIVER_NODE", node)
    nvml(library=False)
    assert detect().warnings == ()
    node.touch()
    assert "libnvidia-ml.so.1" in " ".join(detect().warnings)


def test_of_several_gpus_in_use_the_least_counts() -> None:
    hardware = make_hardware(gpus=(V100, A100)).as_seen_by((A100, V100, unused(H100)))
    assert hardware.compute_capability == (7, 0)
    assert not hardware.supports_bf16_gpu
    assert hardware.capacity_bytes(on_device=True) == 16 * GIB
    assert hardware.capacity_bytes(on_device=False) == hardware.memory_bytes
