"""Kinds of machines with GPUs: what is known of the GPU in use there, and who disturbs it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.machine.hardware import detect
from autotune.machine.probes.torch_memory import torch_gpus
from autotune.measurement.turn import Taken
from autotune.rig.fence.base import make_gpu_nodes
from autotune.rig.resource_monitor import ResourceMonitor
from tests.gpu_fakes import (
    CONTEXT,
    EIGHT,
    GB10,
    GTX_1660,
    LAPTOP,
    MACHINES,
    MIG_GPU,
    RTX_3090,
    helper_for_nodes,
)
from tests.made import A100, GIB
from tests.rigging import talking


@dataclass(frozen=True)
class Known:
    """What is to be known of a machine once the program trains.

    Attributes:
        used: Ids of the GPUs in use.
        capacity_bytes: What a config may fill of them.
        process_bytes: What the rig uses according to NVML.
    """

    used: tuple[str, ...]
    capacity_bytes: int
    has_bf16: bool = True
    process_bytes: int | None = None
    is_disturbed: bool = False


KNOWN = {
    "a laptop with a display server": Known((LAPTOP.uuid,), 7 * GIB, process_bytes=GIB),
    # Of a slice nobody knows how much time a process takes
    "a MIG slice": Known(
        (MIG_GPU.uuid,), (4864 << 20) - CONTEXT, process_bytes=GIB, is_disturbed=True
    ),
    "a container without NVML": Known((A100.uuid,), 40 * GIB - CONTEXT),
    "GB10, whose memory is the host's": Known((GB10.uuid,), 10**11, process_bytes=3 * GIB),
    "two GPUs, the fastest first": Known(
        (RTX_3090.uuid,), 24 * GIB - CONTEXT, process_bytes=2 * GIB
    ),
    "two GPUs, by the PCI bus": Known(
        (GTX_1660.uuid,), 6 * GIB - CONTEXT, has_bf16=False, process_bytes=2 * GIB
    ),
    "a neighbour on GPU 7": Known((EIGHT[0].uuid,), 40 * GIB - CONTEXT, process_bytes=3 * GIB),
    "a neighbour on the GPU in use": Known(
        (A100.uuid,), 10 * GIB, process_bytes=3 * GIB, is_disturbed=True
    ),
    "ids of another pid namespace": Known((A100.uuid,), 40 * GIB - CONTEXT),
    "ids of two pid namespaces": Known((A100.uuid,), 40 * GIB - CONTEXT),
}


@pytest.mark.parametrize("name", MACHINES)
def test_facts_are_of_the_gpu_in_use_and_only_who_works_there_disturbs_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, known = MACHINES[name], KNOWN[name]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with talking("print(flush=True); input()") as (program, _):
        nvml = machine.install(monkeypatch, program.pid, os.getpid())
        hardware = detect().as_seen_by(torch_gpus("cuda"))
        monitor = ResourceMonitor(program.pid, known.used, {})
        monitor.sample()
        taken = monitor.complete(Taken(()), "cuda")
        assert program.stdin is not None
        program.stdin.close()

    assert tuple(gpu.uuid for gpu in hardware.gpus) == tuple(gpu.uuid for gpu in machine.seen)
    assert tuple(gpu.uuid for gpu in hardware.used_gpus) == known.used
    assert hardware.supports_bf16_gpu is known.has_bf16
    assert hardware.capacity_bytes(on_device=True) == known.capacity_bytes
    assert taken.memory.device_process_bytes == known.process_bytes
    assert (taken.interference is not None) is known.is_disturbed
    del monitor
    assert not nvml.users, "a GPU that nobody reads may sleep"


def test_nodes_are_made_of_each_gpu_and_of_unified_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the fence CUDA could not make them."""
    driver, asked = helper_for_nodes(monkeypatch, tmp_path, gpus=3)
    make_gpu_nodes(tmp_path)
    assert not asked.exists(), "there is no driver"
    make_gpu_nodes(driver)
    assert asked.read_text().splitlines() == ["-c 255 -c 0 -c 1 -c 2", "-u -c 0"]
