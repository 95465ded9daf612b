"""Kinds of machines with GPUs: what is known of the GPU in use there, and who disturbs it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.machine.hardware import detect
from autotune.machine.probes.torch_memory import torch_gpus
from autotune.measurement.turn import Taken
from autotune.rig.fence.base import make_gpu_nodes
from autotune.rig.resource_monitor import ResourceMonitor
from tests.gpu_fakes import MACHINES, helper_for_nodes
from tests.rigging import talking


@pytest.mark.parametrize("name", MACHINES)
def test_facts_are_of_the_gpu_in_use_and_only_who_works_there_disturbs_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = MACHINES[name]
    used = tuple(gpu.uuid for gpu in machine.seen if gpu.is_used)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with talking("print(flush=True); input()") as (program, _):
        nvml = machine.install(monkeypatch, program.pid, os.getpid())
        hardware = detect().as_seen_by(torch_gpus("cuda"))
        monitor = ResourceMonitor(program.pid, used, {})
        monitor.sample()
        taken = monitor.complete(Taken(()), "cuda")
        assert program.stdin is not None
        program.stdin.close()

    assert tuple(replace(gpu, usable_bytes=None) for gpu in hardware.gpus) == machine.seen
    assert hardware.supports_bf16_gpu is machine.has_bf16
    assert hardware.capacity_bytes(on_device=True) == machine.room_bytes
    assert taken.memory.device_process_bytes == machine.process_bytes
    assert (taken.interference is not None) is machine.is_disturbed
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
