# ruff: noqa: N802, N803 - the names are those of pynvml
"""Stand-ins for NVIDIA's driver and torch's GPUs, where there are none: all that tests use.

Nothing here was recorded from a device. Each behaviour follows a document or what somebody's device
was seen to do, named beside it. Error classes, constants and the fields of answers are those of
nvidia-ml-py and torch, and ``answers_of`` puts the same calls to a real device.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import time
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

import pynvml
import pytest
import torch
from torch import nn
from torch.utils.data._utils import pin_memory as pinning

from autotune.machine.hardware import Gpu
from tests.made import A100, GIB

T = TypeVar("T")

# NVML ----------------------------------------------------------------------------------------
#
# NVML API Reference, "Device Queries" and "Event types" (https://docs.nvidia.com/deploy/nvml-api/),
# and nvidia-ml-py, which raises an error for each return code but NVML_SUCCESS.

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
    """Return what NVML sampled of a process some time ago."""
    return ProcessSample(pid, int((time() - ago_s) * 1e6), sm_pct)


@dataclass(frozen=True)
class GpuState:
    """What one GPU reports besides its memory, an A100 at work; None is "Not Supported".

    A display server is among the graphics processes, and "utilization of processes" is of Maxwell
    and newer, and not of MIG (NVML API Reference, ``nvmlDeviceGetGraphicsRunningProcesses`` and
    ``nvmlDeviceGetProcessUtilization``).
    """

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


class FakeNvml(ModuleType):
    """What pynvml answers on a machine with these GPUs.

    Args:
        gpus: The GPUs in NVML's order, which is that of the PCI bus (``nvmlDeviceGetHandleByIndex``
            promises none; nvidia-smi was seen to list them so). A handle is a GPU itself. Facts
            that are None are "Not Supported".
        used_bytes: Memory in use, per reading; the last one stays.
        library: The driver's library is installed. A container gets it only with the driver's
            capability "utility" (NVIDIA Container Toolkit, "Driver Capabilities").
        fails_at: From this function's first call on, each call raises NVMLError.
        slices: MIG devices, which have handles and are not counted.
        states: What each GPU reports, by UUID; an A100 at work where nothing is said.

    Attributes:
        lacks: Functions that this driver is too old for.
        lost: UUIDs of GPUs that have fallen off the bus.
        asked: UUIDs of the GPUs whose memory was read.
        users: How often nvmlInit was called without nvmlShutdown: NVML counts references, and is
            shut down with the last ("Initialization and Cleanup").
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
        slices: Sequence[Gpu] = (),
        states: Mapping[str, GpuState] | None = None,
    ) -> None:
        super().__init__("pynvml")
        reasons = {n: v for n, v in vars(pynvml).items() if n.startswith("nvmlClocksEventReason")}
        vars(self).update(reasons)
        self._gpus, self._slices = gpus, slices
        self._used_bytes = list(used_bytes)
        self._library = library
        self.users = 0
        self.fails_at = fails_at
        self.states = dict(states or {})
        self.lacks: frozenset[str] = frozenset()
        self.lost: frozenset[str] = frozenset()
        self.asked: set[str] = set()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
        """Stand at pynvml's place, for code that imports it itself."""
        monkeypatch.setitem(sys.modules, "pynvml", self)
        return self

    def nvmlInit(self) -> None:
        if not self._library:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        self._answer("nvmlInit")
        self.users += 1

    def nvmlShutdown(self) -> None:
        if not self.users:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        self.users -= 1

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
        found = [gpu for gpu in (*self._gpus, *self._slices) if gpu.uuid == uuid]
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
        return SimpleNamespace(total=total, used=used, free=total - used)  # nvmlMemory_t

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
        """Return the samples since a time; NVML_ERROR_NOT_FOUND if there is none."""
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


def differences_from_a_device(index: int) -> list[str]:
    """Put the calls that the fakes answer to a real GPU; return what it answers in another form.

    That a device or driver does not support a call is no difference: fakes say None for it.

    Args:
        index: The GPU, to torch.
    """
    facts = torch.cuda.get_device_properties(index)
    fake_nvml, found = FakeNvml([A100]), list[str]()
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(
        f"{'MIG' if ' MIG ' in facts.name else 'GPU'}-{facts.uuid}"
    )
    for name in (name for name in vars(FakeNvml) if name.startswith("nvmlDeviceGet")):
        if "Handle" in name or name == "nvmlDeviceGetCount":
            continue
        args = {"nvmlDeviceGetTemperature": (pynvml.NVML_TEMPERATURE_GPU,)}.get(
            name, (0,) if name == "nvmlDeviceGetProcessUtilization" else ()
        )
        fake_nvml.states[A100.uuid] = GpuState(
            compute=(ProcessInfo(1, 1),), graphics=(ProcessInfo(1, 1),), samples=(at_work(1, 1),)
        )
        faked = _form(getattr(fake_nvml, name)(A100, *args))
        try:
            real = _form(getattr(pynvml, name)(handle, *args))
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_NotFound):
            continue
        if real and not faked <= real:
            found.append(f"{name} gives {sorted(real)}, not {sorted(faked)}")
    pynvml.nvmlShutdown()
    return found


def _form(answer: Any) -> set[str]:
    """Return the type of a plain answer, or the names of its fields; empty for an empty list."""
    if isinstance(answer, list):
        return _form(answer[0]) if answer else set()
    if isinstance(answer, (int, str, tuple)):
        return {type(answer).__name__}
    return {*vars(answer), *(name for name, *_ in getattr(answer, "_fields_", ()))}


# torch.cuda ----------------------------------------------------------------------------------


class FakeCuda:
    """torch.cuda in a program that sees these GPUs, in this order.

    cudaDeviceProp (CUDA Runtime API, "Data types"): ``name`` is "ASCII string identifying device",
    ``uuid`` is "16-byte unique identifier", which torch prints without NVML's prefix. torch's
    allocator keeps what was freed ("CUDA semantics", memory management:
    https://pytorch.org/docs/stable/notes/cuda.html#memory-management). ``mem_get_info`` is
    cudaMemGetInfo: free bytes are what nobody holds, contexts included, and to ask makes a context
    on a device that has none; nothing else here does.

    Attributes:
        contexts: Devices on which the program computes; ``unused()`` GPUs have none.
        others_bytes: What contexts and other processes hold of each.
        emptied: Caches that were emptied, of the device and of page-locked memory: both keep what
            was freed (torch/accelerator/memory.py, ``empty_host_cache``, in torch 2.14; by its
            private name in torch 2.5 and later).
        refused: Requests that the allocator could not meet, of each (``num_ooms``).
        shares: Of each, what this process may reserve (``set_per_process_memory_fraction``). More
            is refused, after the cache was emptied; what is reserved already stays
            (c10/cuda/CUDACachingAllocator.cpp, ``alloc_block``).
        retries: How often the cache was emptied because of that (``num_alloc_retries``).
        limited: How often a share was set.
        has_caching: Whether the allocator keeps memory (PYTORCH_NO_CUDA_MEMORY_CACHING turns it
            off).
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *gpus: Gpu) -> None:
        self._gpus = gpus
        self.contexts = {index for index, gpu in enumerate(gpus) if gpu.is_used}
        self.others_bytes = [0] * len(gpus)
        self.refused = [0] * len(gpus)
        self.emptied: list[str] = []
        self.shares = [1.0] * len(gpus)
        self.retries = self.limited = 0
        self.taken = [0] * len(gpus)
        self.reserved = [2 << 20 if gpu.is_used else 0 for gpu in gpus]
        self.peaks = self.reserved.copy()
        self.done_s = [0.0] * len(gpus)
        self.waited_s = [0.0] * len(gpus)
        answers: dict[str, Callable[..., Any]] = {
            "device_count": lambda: len(gpus),
            "current_device": lambda: min(self.contexts, default=0),
            "is_initialized": lambda: bool(self.contexts),
            "get_device_properties": self._properties,
            "memory_reserved": self.reserved.__getitem__,
            "max_memory_reserved": self.peaks.__getitem__,
            "max_memory_allocated": self.peaks.__getitem__,
            "memory_stats": self._stats,
            "mem_get_info": self._mem_get_info,
            "get_per_process_memory_fraction": self.shares.__getitem__,
            "set_per_process_memory_fraction": self._limit,
            "empty_cache": self._empty_cache,
            "reset_peak_memory_stats": self._reset_peak,
            "current_stream": lambda device: device,
            "synchronize": self._synchronize,
            "Event": lambda *, enable_timing: _FakeEvent(self, has_time=enable_timing),
        }
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, answer)
        monkeypatch.setattr(
            torch.accelerator,
            "empty_host_cache",
            lambda: self.emptied.append("host"),
            raising=False,
        )
        monkeypatch.setattr(torch._C, "_host_emptyCache", lambda: self.emptied.append("host"))

    def work(self, *seconds: float) -> None:
        """Give each device so much to do."""
        for device, more_s in enumerate(seconds):
            self.done_s[device] += more_s

    def fill(self, *sizes: int) -> None:
        """Have a step take so many bytes of each device's allocator."""
        for device, size in enumerate(sizes):
            total = self._gpus[device].memory_bytes or 0
            if size > max(self.reserved[device], total * self.shares[device]):
                self.retries += 1
                raise torch.OutOfMemoryError
            self.taken[device] += max(0, size - self.reserved[device])
            self.reserved[device] = max(size, self.reserved[device])
            self.peaks[device] = max(self.peaks[device], size)

    def _properties(self, device: int) -> SimpleNamespace:
        gpu = self._gpus[device]
        assert gpu.compute_capability is not None, "torch knows it of every device"
        major, minor = gpu.compute_capability
        uuid = gpu.uuid.partition("-")[2]
        return SimpleNamespace(
            name=gpu.name, uuid=uuid, total_memory=gpu.memory_bytes, major=major, minor=minor
        )

    def _stats(self, device: int) -> dict[str, int]:
        return {
            "reserved_bytes.all.allocated": self.taken[device],
            "reserved_bytes.all.peak": self.peaks[device],
            "num_ooms": self.refused[device],
            "num_alloc_retries": self.retries * (device == 0),
        }

    def _mem_get_info(self, device: int) -> tuple[int, int]:
        assert device in self.contexts, "to ask makes a context there, of some hundred MiB"
        total = self._gpus[device].memory_bytes or 0
        return total - self.reserved[device] - self.others_bytes[device], total

    def _limit(self, share: float, device: int) -> None:
        self.limited += 1
        self.shares[device] = share

    def _empty_cache(self) -> None:
        self.emptied.append("device")
        self.reserved[:] = [0] * len(self._gpus)

    def _reset_peak(self, device: int) -> None:
        self.peaks[device] = self.reserved[device]

    def _synchronize(self, device: int) -> None:
        assert device in self.contexts, "to wait for it makes a context there"
        self.waited_s[device] = self.done_s[device]


class _FakeEvent:
    """A moment on the timeline of one device (``torch.cuda.Event``).

    ATen/cuda/CUDAEvent.h: it is of the device of the stream that it is first recorded on.
    cudaEventElapsedTime (CUDA Runtime API, "Event Management"): cudaErrorNotReady if an event has
    not passed, and cudaErrorInvalidResourceHandle for one without timing or of another device.
    """

    def __init__(self, cuda: FakeCuda, *, has_time: bool) -> None:
        self._cuda, self._has_time = cuda, has_time
        self.device, self.at_s = -1, 0.0

    def record(self, stream: int) -> None:
        assert stream in self._cuda.contexts, "it would make a context there"
        self.device, self.at_s = stream, self._cuda.done_s[stream]

    def elapsed_time(self, end: _FakeEvent) -> float:
        assert self._has_time
        assert self.device == end.device
        assert end.at_s <= self._cuda.waited_s[end.device], "the device has not passed it"
        return 1000 * (end.at_s - self.at_s)


def unused(gpu: Gpu) -> Gpu:
    """Return a GPU that a program sees and leaves alone."""
    return replace(gpu, is_used=False)


# Written beside a program as sitecustomize.py, which Python imports first (its module "site").
# cuInit reads CUDA_VISIBLE_DEVICES once, and torch keeps children from CUDA that are forked after
# it (its note "Poison fork in multiprocessing"). These are the functions by which torch's Python
# code gets there; ``torch.cuda.device_count`` does where NVML does not answer (torch/cuda, 2.14).
_CUDA_GUARD = """
import os, sys, traceback

class Guard:
    def find_spec(self, name, path=None, target=None):
        if name == "torch.cuda":  # torch._C is loaded, and nobody has called it
            sys.meta_path.remove(self)
            for function in ("_cuda_getDeviceCount", "_cuda_init"):
                self.guard(sys.modules["torch._C"], function)

    def guard(self, owner, name):
        original = getattr(owner, name)
        def asked(*args):
            if "CUDA_IS_ASKED" not in os.environ:
                with open({log!r}, "a") as log:
                    log.write("".join(traceback.format_stack()))
                raise RuntimeError("CUDA was asked before the program asked")
            return original(*args)
        setattr(owner, name, asked)

sys.meta_path.insert(0, Guard())
"""


def guard_cuda(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Refuse CUDA to programs until they set CUDA_IS_ASKED, in processes that start from now on.

    Returns:
        The file that gets the stack of each call before.
    """
    log = folder / "asked-cuda.txt"
    (folder / "sitecustomize.py").write_text(_CUDA_GUARD.replace("{log!r}", repr(str(log))))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return log


def helper_for_nodes(monkeypatch: pytest.MonkeyPatch, folder: Path, gpus: int) -> tuple[Path, Path]:
    """Put a helper on the path that notes what it is asked, beside a driver with so many GPUs.

    nvidia-modprobe makes the node of each minor number that -c names, of GPUs or with -u of unified
    memory (https://github.com/NVIDIA/nvidia-modprobe, nvidia-modprobe.c). The driver has a folder
    for each GPU (its README, "The /proc Interface").

    Returns:
        The driver's folder, and the file of what was asked.
    """
    driver, asked = folder / "driver", folder / "asked"
    for number in range(gpus):
        (driver / "gpus" / f"0000:{number:02x}:00.0").mkdir(parents=True)
    (driver / "version").touch()
    helper = folder / "nvidia-modprobe"
    helper.write_text(f'#!/bin/sh\necho "$@" >> {shlex.quote(str(asked))}\n')
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return driver, asked


# A program whose second step is captured, as in "CUDA semantics", "CUDA Graphs": between the begin
# and the end of a capture ``torch.cuda.is_current_stream_capturing`` is True.
CAPTURES_A_STEP = """
import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step():
    optimizer.zero_grad()
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()

step()
torch.cuda.is_initialized = torch.cuda.is_current_stream_capturing = lambda: True
step()
while True:
    pass  # graph.replay()
"""


def pins_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tensors be pinned where no driver could lock their pages.

    ``torch.Tensor.pin_memory`` returns a copy in page-locked memory;
    ``torch.utils.data._utils.pin_memory.pin_memory`` calls it for the tensors of a batch, or the
    ``pin_memory()`` that a batch of another type has.
    """

    def pinned(tensor: torch.Tensor, _device: object = None) -> torch.Tensor:
        return tensor.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", pinned)
    assert pinning.pin_memory(torch.ones(1)).item() == 1


# Machines ------------------------------------------------------------------------------------

CONTEXT = 500 << 20
Users = Callable[[int, int], Mapping[str, GpuState]]


@dataclass(frozen=True)
class GpuMachine:
    """A machine as NVML and a program's torch show it.

    Attributes:
        listed: GPUs that NVML lists, in its order, with the facts that it tells.
        seen: GPUs that the program's torch sees, in CUDA's order.
        states: What NVML says of each, by UUID; made of the ids of a process of the rig and of one
            that is not, where NVML speaks of processes of this pid namespace.
        others_bytes: What contexts and others hold of each GPU in ``seen``.
        has_library: Whether NVML's library is installed.
        source: Who saw such a machine, or which document describes it.
        room_bytes: What a config may fill of the GPU in use, as is to be found out.
        process_bytes: What the rig uses according to NVML; None where it does not say.
    """

    listed: tuple[Gpu, ...]
    seen: tuple[Gpu, ...]
    source: str
    states: Users = lambda _ours, _other: {}
    others_bytes: tuple[int, ...] = ()
    has_library: bool = True
    room_bytes: int = 40 * GIB - CONTEXT
    process_bytes: int | None = None
    has_bf16: bool = True
    is_disturbed: bool = False

    def install(self, monkeypatch: pytest.MonkeyPatch, ours: int, other: int) -> FakeNvml:
        """Let NVML and torch answer as on this machine."""
        cuda = FakeCuda(monkeypatch, *self.seen)
        cuda.others_bytes[: len(self.others_bytes)] = self.others_bytes
        states = self.states(ours, other)
        known = {gpu.uuid for gpu in self.listed}
        slices = [gpu for gpu in self.seen if gpu.uuid not in known and self.has_library]
        nvml = FakeNvml(
            self.listed, [6 * GIB], slices=slices, states=states, library=self.has_library
        )
        return nvml.install(monkeypatch)


def _uuid(number: int, kind: str = "GPU") -> str:
    return f"{kind}-00000000-0000-0000-0000-{number:012}"


LAPTOP = Gpu("NVIDIA GeForce RTX 3070 Laptop GPU", _uuid(86), 8 * GIB, (8, 6))
MIG_GPU = Gpu("NVIDIA A100-SXM4-40GB MIG 1g.5gb", _uuid(81, "MIG"), 4864 << 20, (8, 0))
MIG_SLICE = GpuState(reasons=None, temperature_c=None, energy_mj=None, samples=None)
GB10 = Gpu("NVIDIA GB10", _uuid(121), None, (12, 1))
GTX_1660 = Gpu("NVIDIA GeForce GTX 1660 SUPER", _uuid(75), 6 * GIB, (7, 5))
RTX_3090 = Gpu("NVIDIA GeForce RTX 3090", _uuid(87), 24 * GIB, (8, 6))
EIGHT = tuple(replace(A100, uuid=_uuid(800 + number)) for number in range(8))
ELSEWHERE = (1 << 22) + 7  # a process id beyond Linux's largest

MACHINES = {
    "a laptop with a display server": GpuMachine(
        (LAPTOP,),
        (LAPTOP,),
        "Xorg and gnome-shell with Type G, 28 and 46 MiB, in nvidia-smi -q of "
        "https://github.com/NVIDIA/nvidia-docker/issues/1264; one of Type C+G, which is in both "
        "lists, in https://github.com/anderskm/gputil/issues/38",
        lambda ours, other: {
            LAPTOP.uuid: GpuState(
                compute=(ProcessInfo(ours, GIB), ProcessInfo(other, 46 << 20)),
                graphics=(ProcessInfo(other, 46 << 20),),
                samples=(at_work(ours, 80), at_work(other, 3)),
            )
        },
        others_bytes=(GIB,),
        room_bytes=7 * GIB,
        process_bytes=GIB,
    ),
    "a MIG slice": GpuMachine(
        (A100,),
        (MIG_GPU,),
        'MIG User Guide, "MIG Device Names": a slice is called "MIG 1g.5gb", after its GPU; CUDA '
        'Driver API, cuDeviceGetUuid_v2: "If the device is in MIG mode, returns its MIG UUID". '
        "Ids of processes with GPU instance in https://github.com/XuehaiPan/nvitop/pull/8, and "
        "Not Supported for utilization in https://github.com/XuehaiPan/nvitop/issues/5",
        lambda ours, other: {
            MIG_GPU.uuid: replace(
                MIG_SLICE,
                compute=(ProcessInfo(ours, GIB, 1, 0), ProcessInfo(other, GIB, 1, 0)),
            )
        },
        others_bytes=(CONTEXT,),
        room_bytes=(4864 << 20) - CONTEXT,
        process_bytes=GIB,
        is_disturbed=True,  # nobody knows how much time of a slice a process takes
    ),
    "a container without NVML": GpuMachine(
        (),
        (A100,),
        'NVIDIA Container Toolkit, "Driver Capabilities": compute is "required for CUDA", utility '
        '"required for using nvidia-smi and NVML"',
        others_bytes=(CONTEXT,),
        has_library=False,
    ),
    "GB10, whose memory is the host's": GpuMachine(
        (GB10,),
        (replace(GB10, memory_bytes=128_501_256_192),),
        "nvmlDeviceGetMemoryInfo is NVML_ERROR_NOT_SUPPORTED in "
        "https://github.com/XuehaiPan/nvitop/pull/208; cudaMemGetInfo answers in "
        "https://github.com/NVIDIA-NeMo/RL/pull/2203; its size is in "
        "https://github.com/leptonai/gpud/pull/1170",
        lambda ours, _: {
            GB10.uuid: GpuState(compute=(ProcessInfo(ours, 3 * GIB),), samples=(at_work(ours, 90),))
        },
        others_bytes=(28_501_256_192,),
        room_bytes=10**11,
        process_bytes=3 * GIB,
    ),
    "two GPUs, the fastest first": GpuMachine(
        (GTX_1660, RTX_3090),
        (RTX_3090, unused(GTX_1660)),
        "NVML and CUDA list the two in opposite orders in "
        "https://github.com/LostRuins/koboldcpp/issues/1023; CUDA Programming Guide, "
        '"CUDA Environment Variables": CUDA_DEVICE_ORDER is FASTEST_FIRST by default',
        lambda ours, other: {
            GTX_1660.uuid: GpuState(samples=(at_work(other, 90),)),
            RTX_3090.uuid: GpuState(
                compute=(ProcessInfo(ours, 2 * GIB),), samples=(at_work(ours, 90),)
            ),
        },
        others_bytes=(CONTEXT,),
        room_bytes=24 * GIB - CONTEXT,
        process_bytes=2 * GIB,
    ),
    "two GPUs, by the PCI bus": GpuMachine(
        (GTX_1660, RTX_3090),
        (GTX_1660, unused(RTX_3090)),
        "The same with CUDA_DEVICE_ORDER=PCI_BUS_ID, and a program on cuda:0",
        lambda ours, other: {
            GTX_1660.uuid: GpuState(
                compute=(ProcessInfo(ours, 2 * GIB),), samples=(at_work(ours, 90),)
            ),
            RTX_3090.uuid: GpuState(samples=(at_work(other, 90),)),
        },
        others_bytes=(CONTEXT,),
        room_bytes=6 * GIB - CONTEXT,
        process_bytes=2 * GIB,
        has_bf16=False,
    ),
    "a neighbour on GPU 7": GpuMachine(
        EIGHT,
        (EIGHT[0], *map(unused, EIGHT[1:])),
        "NVML lists and samples the processes of one GPU (nvmlDeviceGetComputeRunningProcesses)",
        lambda ours, other: {
            EIGHT[0].uuid: GpuState(
                compute=(ProcessInfo(ours, 3 * GIB),), samples=(at_work(ours, 90),)
            ),
            EIGHT[7].uuid: replace(
                THROTTLED, compute=(ProcessInfo(other, 30 * GIB),), samples=(at_work(other, 97),)
            ),
        },
        others_bytes=(CONTEXT, *[0] * 6, 30 * GIB),
        process_bytes=3 * GIB,
    ),
    "a neighbour on the GPU in use": GpuMachine(
        (A100,),
        (A100,),
        "As above, of one GPU",
        lambda ours, other: {
            A100.uuid: GpuState(
                compute=(ProcessInfo(ours, 3 * GIB), ProcessInfo(other, 30 * GIB)),
                samples=(at_work(ours, 40), at_work(other, 60)),
            )
        },
        others_bytes=(30 * GIB,),
        room_bytes=10 * GIB,
        process_bytes=3 * GIB,
        is_disturbed=True,
    ),
    "ids of another pid namespace": GpuMachine(
        (A100,),
        (A100,),
        '"The nvidia-driver itself does not support pid-namespaces [...] you will always get the '
        'host pids" (https://github.com/NVIDIA/nvidia-docker/issues/1483). One of them may be that '
        "of another process here",
        lambda _, other: {
            A100.uuid: GpuState(
                compute=(ProcessInfo(ELSEWHERE, 3 * GIB), ProcessInfo(other, GIB)),
                samples=(at_work(ELSEWHERE, 40), at_work(other, 60)),
            )
        },
        others_bytes=(CONTEXT,),
    ),
    "ids of two pid namespaces": GpuMachine(
        (A100,),
        (A100,),
        "Driver 560 lists the container's id with 0 bytes and samples the host's: "
        "https://github.com/Project-HAMi/HAMi-core/issues/112",
        lambda ours, other: {
            A100.uuid: GpuState(compute=(ProcessInfo(ours, 0),), samples=(at_work(other, 60),))
        },
        others_bytes=(CONTEXT,),
    ),
}


# nn.DataParallel -------------------------------------------------------------------------------
#
# torch moves tensors between devices in C++ (torch.nn.parallel._functions), which takes GPUs alone,
# so that is replaced here, at the methods that DataParallel.forward calls. The threads of replicas
# are torch's own (torch.nn.parallel.parallel_apply), which ask torch.accelerator for devices.

ACCELERATOR = {
    "is_available": lambda: True,
    "current_accelerator": lambda: torch.device("cpu"),
    "current_stream": lambda _: nullcontext(),
    "device_index": lambda _: nullcontext(),
}
# Before torch 2.9 they ask torch.cuda, and take the format of CUDA (torch.amp.autocast)
CUDA = ("current_stream", "device", "stream")


class Replica(nn.Module):
    """A copy of a model, which has no parameters, as with torch (``nn.parallel.replicate``)."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.call = module.forward

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.call(*inputs, **kwargs)


class Replicated(nn.DataParallel[nn.Module]):
    """A model with two replicas."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)  # torch's would take the devices of this machine
        self.module = module
        self.device_ids = [0, 1]
        self.output_device = self.dim = 0
        self.src_device_obj = torch.device("cpu")

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        parts = inputs[0].chunk(len(device_ids))
        return [(part,) for part in parts], [kwargs for _ in parts]

    def replicate(self, module: nn.Module, device_ids: Any) -> list[nn.Module]:
        return [Replica(module) for _ in device_ids]

    def parallel_apply(self, replicas: Any, inputs: Any, kwargs: Any) -> list[Any]:
        asks = torch.is_autocast_enabled  # of CUDA, unless a device is named
        autocast = torch.amp.autocast
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "is_autocast_enabled", lambda device="cpu": asks(device))
            if not hasattr(torch.accelerator, "device_index"):
                for name in CUDA:
                    patch.setattr(torch.cuda, name, lambda _: nullcontext())
                patch.setattr(
                    torch.amp, "autocast", lambda _, enabled: autocast("cpu", enabled=enabled)
                )
            for name, answer in ACCELERATOR.items():
                patch.setattr(torch.accelerator, name, answer, raising=False)
            return super().parallel_apply(replicas, inputs, kwargs)

    def gather(self, outputs: Any, output_device: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return torch.cat([output if output.dim() else output.view(1) for output in outputs])
