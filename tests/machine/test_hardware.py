"""Facts about the machine: quotas of containers, visible GPUs, and what two machines differ in."""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import psutil
import pytest

from autotune.machine.hardware import Gpu, Hardware, cpu_quota, detect, visible_gpus
from tests.made import A100, GIB, H100, HARDWARE, V100, make_hardware
from tests.readings import GB10, MIG_GPU, NvmlReadings, unused

CORES = len(os.sched_getaffinity(0))


def write(root: Path, texts: Mapping[str, str]) -> Path:
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def cgroup_v2(root: Path, text: str) -> Path:
    """Write the files of a process in the root group of cgroup v2; return its folder in /proc."""
    write(root, {"cpu.max": text, "proc/cgroup": "0::/\n"})
    write(root, {"proc/mountinfo": f"31 23 0:28 / {root} rw - cgroup2 cgroup2 rw\n"})
    return root / "proc"


# --- cores ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("100000 100000\n", 1),
        ("10000 100000\n", 1),
        ("50000 100000\n", 1),
        ("150000 100000\n", 2),
        ("1000 1000000\n", 1),
        ("max 100000\n", math.inf),
        (f"{1024 * 100000} 100000\n", math.inf),
        ("", math.inf),
    ],
)
def test_cgroup_v2_limits_the_cores_and_part_of_a_core_counts_as_one(
    tmp_path: Path, text: str, cores: float
) -> None:
    assert cpu_quota(cgroup_v2(tmp_path, text)) == min(CORES, cores)


# --- visible GPUs ---------------------------------------------------------------------------------

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


# --- facts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "claim"),
    [((), False), ((V100,), False), ((A100,), True), ((A100, H100), True), ((A100, V100), False)],
)
def test_bf16_on_gpus_needs_all_of_them_to_be_ampere_or_later(
    gpus: tuple[Gpu, ...], claim: bool
) -> None:
    assert make_hardware(gpus=gpus).supports_bf16_gpu is claim


def test_a_machine_does_not_differ_from_itself_however_full_its_shared_memory_is() -> None:
    assert HARDWARE.differences(HARDWARE) == []
    assert HARDWARE.differences(make_hardware(shm_bytes=1, warnings=("NVML is silent",))) == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (make_hardware(cpu_name="Xeon"), "CPU: AMD EPYC 7B13 during the search, Xeon now"),
        (make_hardware(cpu_quota=4), "cores: 2 during the search, 4 now"),
        (make_hardware(gpus=(A100,)), "GPUs: none during the search, NVIDIA A100-SXM4-40GB now"),
        (
            make_hardware(versions={"python": "3.11.7", "torch": "2.12.0"}),
            "torch: 2.11.0 during the search, 2.12.0 now",
        ),
        (make_hardware(versions={"torch": "2.11.0"}), "python: 3.11.7 during the search, none now"),
    ],
)
def test_each_fact_that_decides_speed_is_a_difference(changed: Hardware, expected: str) -> None:
    assert HARDWARE.differences(changed) == [expected]


# --- this machine ---------------------------------------------------------------------------------


def test_the_facts_of_this_machine_are_sane() -> None:
    hardware = detect()
    assert 1 <= hardware.cpu_quota <= CORES
    assert hardware.cpu_name
    assert 0 < hardware.memory_bytes <= psutil.virtual_memory().total
    assert hardware.system.startswith(platform.system())
    assert hardware.versions["python"] == platform.python_version()
    assert hardware.versions["torch"] == metadata.version("torch")


@pytest.mark.parametrize("answers_until", ["nvmlInit", "nvmlDeviceGetHandleByIndex"])
def test_a_driver_that_does_not_answer_is_a_doubt_and_not_an_error(
    monkeypatch: pytest.MonkeyPatch, answers_until: str
) -> None:
    readings = NvmlReadings((A100,), fails_at=answers_until)
    monkeypatch.setitem(sys.modules, "pynvml", readings)
    hardware = detect()
    assert hardware.gpus == ()
    assert len(hardware.warnings) == 1
    assert "GPU facts are unknown" in hardware.warnings[0]
    assert readings.is_shut_down


@pytest.mark.parametrize("text_as_bytes", [True, False])
def test_gpus_are_read_by_name_memory_and_capability(
    monkeypatch: pytest.MonkeyPatch, text_as_bytes: bool
) -> None:
    monkeypatch.setitem(
        sys.modules, "pynvml", NvmlReadings((A100, H100), text_as_bytes=text_as_bytes)
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert detect().gpus == (A100, H100)


def test_a_gpu_that_is_lost_is_a_doubt_and_the_others_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readings = NvmlReadings((V100, A100, H100))
    readings.lost = frozenset({A100.uuid})
    monkeypatch.setitem(sys.modules, "pynvml", readings)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    hardware = detect()
    assert hardware.gpus == (V100, H100)
    assert hardware.warnings[0].startswith("GPU 1 does not answer (GPU is lost)")
    assert readings.is_shut_down


def test_a_fact_that_a_gpu_does_not_tell_is_unknown_and_the_others_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent = replace(A100, compute_capability=None)
    monkeypatch.setitem(sys.modules, "pynvml", NvmlReadings((GB10, silent)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    hardware = detect()
    assert hardware.gpus == (GB10, silent)
    assert hardware.warnings == ()
    assert hardware.compute_capability is None, "the lowest may be the one that is unknown"
    assert hardware.capacity_bytes(on_device=True) == A100.memory_bytes


def test_a_driver_without_nvml_is_no_machine_without_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a container to which only the capability "compute" of the driver was given."""
    node = tmp_path / "nvidiactl"
    monkeypatch.setattr("autotune.machine.hardware.DRIVER_NODE", node)
    monkeypatch.setitem(sys.modules, "pynvml", NvmlReadings(library=False))
    assert detect().warnings == ()
    node.touch()
    (warning,) = detect().warnings
    assert "libnvidia-ml.so.1" in warning


def test_gpus_that_cannot_be_read_now_are_no_difference() -> None:
    during = make_hardware(gpus=(A100,))
    unread = make_hardware(warnings=("NVML is silent",))
    assert during.differences(unread) == unread.differences(during) == []
    assert during.differences(make_hardware()) == [
        "GPUs: NVIDIA A100-SXM4-40GB during the search, none now"
    ]


# --- GPUs as a program sees them ------------------------------------------------------------------

LISTED = make_hardware(gpus=(V100, A100))  # by NVML, in the order of the PCI bus


@pytest.mark.parametrize(
    ("listed", "seen", "capability", "has_bf16", "capacity_bytes"),
    [
        (LISTED, (A100, unused(V100)), (8, 0), True, 40 * GIB),
        (LISTED, (unused(A100), V100), (7, 0), False, 16 * GIB),
        (LISTED, (A100, V100), (7, 0), False, 16 * GIB),
        (make_hardware(gpus=(H100,)), (MIG_GPU,), (8, 0), True, 4864 << 20),
        (make_hardware(), (replace(GB10, memory_bytes=120 * GIB),), (12, 1), True, 120 * GIB),
        (make_hardware(gpus=(GB10,)), (replace(GB10, memory_bytes=9),), (12, 1), True, 9),
    ],
    ids=["fastest first", "the slower", "both", "a slice of MIG", "without NVML", "one memory"],
)
def test_what_the_program_sees_and_uses_counts(
    listed: Hardware,
    seen: tuple[Gpu, ...],
    capability: tuple[int, int],
    has_bf16: bool,
    capacity_bytes: int,
) -> None:
    hardware = listed.as_seen_by(seen)
    assert hardware.gpus == seen, "all of them may hold ranks"
    assert hardware.compute_capability == capability
    assert hardware.supports_bf16_gpu is has_bf16
    assert hardware.capacity_bytes(on_device=True) == capacity_bytes
    assert hardware.capacity_bytes(on_device=False) == hardware.memory_bytes
