# ruff: noqa: N802, N803 - the names are those of pynvml
"""Recorded readings: stands in for pynvml, and for torch's GPUs, where there is no NVIDIA driver.

A module-like object, because the real one needs a driver; error classes, constants and the fields
of its answers are nvidia-ml-py's own. What they answer follows these documents:

- NVML API Reference, "Device Queries" (https://docs.nvidia.com/deploy/nvml-api/): utilization of
  processes is of Maxwell and newer, not of MIG, and NVML_ERROR_NOT_FOUND if there is none; a
  display server is among the graphics processes; indices are ordered by PCI bus.
- Memory is NVML_ERROR_NOT_SUPPORTED on GB10, whose GPU shares the memory of the host
  (https://forums.developer.nvidia.com/t/358869).
- MIG User Guide, "MIG Device Names" (https://docs.nvidia.com/datacenter/tesla/mig-user-guide/): a
  slice is called "MIG 1g.5gb", after the name of its GPU. CUDA Driver API, cuDeviceGetUuid_v2: "If
  the device is in MIG mode, returns its MIG UUID", which NVML takes with "MIG-" before it.
- CUDA Programming Guide, 5.2 "CUDA Environment Variables": CUDA_DEVICE_ORDER is FASTEST_FIRST
  unless it is set to PCI_BUS_ID.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import time
from types import ModuleType, SimpleNamespace
from typing import TypeVar

import pynvml
import pytest

from autotune.machine.hardware import Gpu

T = TypeVar("T")
NO_INSTANCE = 0xFFFFFFFF  # of a GPU that is not split by MIG


@dataclass(frozen=True)
class ProcessInfo:
    """nvmlProcessInfo_t; pynvml gives None for memory that the driver does not know."""

    pid: int
    usedGpuMemory: int | None  # noqa: N815
    gpuInstanceId: int = NO_INSTANCE  # noqa: N815
    computeInstanceId: int = NO_INSTANCE  # noqa: N815


@dataclass(frozen=True)
class ProcessSample:
    """nvmlProcessUtilizationSample_t, with percentages of the last sample period."""

    pid: int
    timeStamp: int  # noqa: N815
    smUtil: int  # noqa: N815


def at_work(pid: int, sm_pct: int, ago_s: float = 0.1) -> ProcessSample:
    """Return what NVML recorded of a process some time ago."""
    return ProcessSample(pid, int((time() - ago_s) * 1e6), sm_pct)


@dataclass(frozen=True)
class GpuState:
    """What one GPU reports besides its memory, an A100 at work; None is "Not Supported"."""

    reasons: int | None = pynvml.nvmlClocksEventReasonNone
    temperature_c: int | None = 48
    energy_mj: int | None = 1_250_500
    compute: tuple[ProcessInfo, ...] | None = ()
    graphics: tuple[ProcessInfo, ...] | None = ()
    samples: tuple[ProcessSample, ...] | None = ()


THROTTLED = GpuState(
    reasons=pynvml.nvmlClocksEventReasonHwSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    temperature_c=93,
)
MIG_GPU = Gpu(
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    "MIG-00000000-0000-0000-0000-000000000081",
    4864 << 20,
    (8, 0),
)
MIG_SLICE = GpuState(reasons=None, temperature_c=None, energy_mj=None, samples=None)
GB10 = Gpu("NVIDIA GB10", "GPU-00000000-0000-0000-0000-000000000121", None, (12, 1))


class NvmlReadings(ModuleType):
    """What pynvml answers on a machine with these GPUs.

    Args:
        gpus: The GPUs in NVML's order; a handle is a GPU itself. Facts that are None are "Not
            Supported".
        used_bytes: Memory in use, per reading; the last one stays.
        library: The driver's library is installed.
        fails_at: From this function's first call on, each call raises NVMLError.
        states: What each GPU reports, by UUID; an A100 at work where nothing is said.

    Attributes:
        lacks: Functions that this driver is too old for.
        lost: UUIDs of GPUs that have fallen off the bus.
        asked: UUIDs of the GPUs whose memory was read.
    """

    NVMLError = pynvml.NVMLError
    NVMLError_LibraryNotFound = pynvml.NVMLError_LibraryNotFound
    NVMLLibraryMismatchError = pynvml.NVMLLibraryMismatchError
    NVML_SUCCESS = pynvml.NVML_SUCCESS
    NVML_ERROR_NOT_FOUND = pynvml.NVML_ERROR_NOT_FOUND
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU

    def __init__(
        self,
        gpus: Sequence[Gpu] = (),
        used_bytes: Sequence[int] = (0,),
        *,
        library: bool = True,
        fails_at: str = "",
        states: Mapping[str, GpuState] | None = None,
    ) -> None:
        super().__init__("pynvml")
        reasons = {n: v for n, v in vars(pynvml).items() if n.startswith("nvmlClocksEventReason")}
        vars(self).update(reasons)
        self._gpus = gpus
        self._used_bytes = list(used_bytes)
        self._library = library
        self._is_running = False
        self.fails_at = fails_at
        self.states = dict(states or {})
        self.lacks: frozenset[str] = frozenset()
        self.lost: frozenset[str] = frozenset()
        self.asked: set[str] = set()

    @property
    def is_shut_down(self) -> bool:
        return not self._is_running

    def nvmlInit(self) -> None:
        if not self._library:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        self._answer("nvmlInit")
        self._is_running = True

    def nvmlShutdown(self) -> None:
        self._is_running = False

    def nvmlDeviceGetCount(self) -> int:
        self._answer("nvmlDeviceGetCount")
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        self._answer("nvmlDeviceGetHandleByIndex")
        if self._gpus[index].uuid in self.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return self._gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:
        self._answer("nvmlDeviceGetHandleByUUID")
        found = [gpu for gpu in self._gpus if gpu.uuid == uuid]
        if not found:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return found[0]

    def nvmlDeviceGetName(self, handle: Gpu) -> str:
        return handle.name

    def nvmlDeviceGetUUID(self, handle: Gpu) -> str:
        return handle.uuid

    def nvmlDeviceGetCudaComputeCapability(self, handle: Gpu) -> tuple[int, int]:
        return _supported(handle.compute_capability)

    def nvmlDeviceGetMemoryInfo(self, handle: Gpu) -> SimpleNamespace:
        self._answer("nvmlDeviceGetMemoryInfo")
        self.asked.add(handle.uuid)
        total = _supported(handle.memory_bytes)
        used = self._used_bytes.pop(0) if len(self._used_bytes) > 1 else self._used_bytes[0]
        return SimpleNamespace(total=total, used=used)  # nvmlMemory_t

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Gpu) -> int:
        self._answer("nvmlDeviceGetCurrentClocksEventReasons")
        return _supported(self._state(handle).reasons)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Gpu) -> int:
        self._answer("nvmlDeviceGetCurrentClocksThrottleReasons")
        return _supported(self._state(handle).reasons)

    def nvmlDeviceGetTemperature(self, handle: Gpu, sensor: int) -> int:
        self._answer("nvmlDeviceGetTemperature")
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return _supported(self._state(handle).temperature_c)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Gpu) -> int:
        self._answer("nvmlDeviceGetTotalEnergyConsumption")
        return _supported(self._state(handle).energy_mj)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Gpu) -> list[ProcessInfo]:
        self._answer_of_this_version("nvmlDeviceGetComputeRunningProcesses")
        return list(_supported(self._state(handle).compute))

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Gpu) -> list[ProcessInfo]:
        self._answer_of_this_version("nvmlDeviceGetGraphicsRunningProcesses")
        return list(_supported(self._state(handle).graphics))

    def nvmlDeviceGetProcessUtilization(self, handle: Gpu, timeStamp: int) -> list[ProcessSample]:
        self._answer("nvmlDeviceGetProcessUtilization")
        samples = _supported(self._state(handle).samples)
        if new := [sample for sample in samples if sample.timeStamp > timeStamp]:
            return new
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def _state(self, handle: Gpu) -> GpuState:
        return self.states.get(handle.uuid, GpuState())

    def _answer(self, function: str) -> None:
        if function in self.lacks:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        if self.fails_at == function:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    def _answer_of_this_version(self, function: str) -> None:
        """Answer where pynvml asks for the newest version, and has an error of its own for it."""
        try:
            self._answer(function)
        except pynvml.NVMLError_FunctionNotFound as error:
            raise pynvml.NVMLLibraryMismatchError(function) from error


def _supported(value: T | None) -> T:
    if value is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return value


def torch_sees(monkeypatch: pytest.MonkeyPatch, *gpus: Gpu) -> None:
    """Let torch answer as in a program that sees these GPUs, in this order.

    cudaDeviceProp (CUDA Runtime API, "Data types"): ``name`` is "ASCII string identifying device",
    ``uuid`` is "16-byte unique identifier", which torch prints without NVML's prefix. torch's
    allocator holds memory of the GPUs that are used ("CUDA semantics", memory management).
    """
    import torch

    facts = [
        SimpleNamespace(
            name=gpu.name,
            uuid=gpu.uuid.partition("-")[2],
            total_memory=gpu.memory_bytes,
            major=gpu.compute_capability[0],
            minor=gpu.compute_capability[1],
        )
        for gpu in gpus
        if gpu.compute_capability is not None
    ]
    reserved = [2 << 20 if gpu.is_used else 0 for gpu in gpus]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "get_device_properties", facts.__getitem__)
    monkeypatch.setattr(torch.cuda, "memory_reserved", reserved.__getitem__)


def unused(gpu: Gpu) -> Gpu:
    """Return a GPU that a program sees and leaves alone."""
    return replace(gpu, is_used=False)
