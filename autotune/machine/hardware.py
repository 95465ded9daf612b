"""Facts about the machine, from psutil, cgroup files and NVML; never from torch."""

from __future__ import annotations

import math
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import psutil

from autotune.machine import cgroups

PACKAGES = ("torch", "torchvision", "optuna", "autotune-torch")
PRELOADABLE = ("libjemalloc.so.2", "libtcmalloc.so.4")
BF16_CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"})


@dataclass(frozen=True)
class Gpu:
    """One CUDA device as NVML sees it.

    Attributes:
        compute_capability: ``(major, minor)``.
    """

    name: str
    uuid: str
    memory_bytes: int
    compute_capability: tuple[int, int]


@dataclass(frozen=True)
class Hardware:
    """What this machine offers to the program, limits of containers included.

    Attributes:
        cpu_quota: Cores that may be used at once: affinity and cgroup quota, at least 1.
        cpu_flags: Instruction-set flags that matter to a knob.
        memory_bytes: RAM, or the cgroup's limit where that is lower.
        shm_bytes: Free bytes in /dev/shm, None where there is none.
        libraries: Shared libraries that a knob can preload, by soname.
        has_cxx_compiler: A C++ compiler is on PATH; torch.compile on the CPU needs one.
        doubts: What could not be read, as sentences for the user.
    """

    cpu_name: str
    cpu_quota: int
    cpu_flags: tuple[str, ...]
    memory_bytes: int
    shm_bytes: int | None
    gpus: tuple[Gpu, ...]
    has_cxx_compiler: bool
    system: str
    versions: Mapping[str, str] = field(default_factory=dict)
    libraries: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def supports_bf16_cpu(self) -> bool:
        """The CPU multiplies bfloat16 natively; without it autocast emulates and loses."""
        return bool(self.cpu_flags)

    @property
    def supports_bf16_gpu(self) -> bool:
        """Every known GPU multiplies bfloat16 natively: Ampere (8.0) and later."""
        return bool(self.gpus) and all(g.compute_capability >= (8, 0) for g in self.gpus)

    def differences(self, other: Hardware) -> list[str]:
        """Return what differs in the facts that decide speed, as ``what: there, here here``."""
        pairs = {
            "CPU": (self.cpu_name, other.cpu_name),
            "cores": (self.cpu_quota, other.cpu_quota),
            "GPUs": ([g.name for g in self.gpus], [g.name for g in other.gpus]),
            **{
                name: (self.versions.get(name), other.versions.get(name))
                for name in ("python", "torch")
            },
        }
        return [f"{what}: {a} there, {b} here" for what, (a, b) in pairs.items() if a != b]


def detect(visible: str | None = None) -> Hardware:
    """Read the facts of this machine; what cannot be read becomes a doubt, never an error.

    Args:
        visible: The program's CUDA_VISIBLE_DEVICES; None takes our own.
    """
    gpus, doubts = _gpus(os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible)
    return Hardware(
        cpu_name=_cpu_name(),
        cpu_quota=cpu_quota(),
        cpu_flags=tuple(sorted(_cpu_flags() & BF16_CPU_FLAGS)),
        memory_bytes=memory_bytes(),
        shm_bytes=shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else None,  # noqa: S108
        gpus=gpus,
        has_cxx_compiler=any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++"))),
        system=f"{platform.system()} {platform.release()}",
        versions=_versions(),
        libraries=tuple(filter(_can_be_loaded, PRELOADABLE)),
        doubts=doubts,
    )


def _can_be_loaded(soname: str) -> bool:
    """Tell whether the dynamic loader finds a library, by the cache that it reads itself."""
    try:
        cache = Path("/etc/ld.so.cache").read_bytes()
    except OSError:
        return False
    return soname.encode() + b"\0" in cache


def cpu_quota(proc: Path = cgroups.PROC) -> int:
    """Return the number of cores that this process may use at once, at least 1.

    Args:
        proc: The folder that says which control groups hold the process.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = cgroups.cpu_limit(proc)
    return max(1, min(allowed or 1, math.ceil(quota) if quota else allowed or 1))


def memory_bytes(proc: Path = cgroups.PROC) -> int:
    """Return the RAM that this process may use: the machine's, or its control groups' limit."""
    total = int(psutil.virtual_memory().total)
    limit = cgroups.memory_limit(proc)
    return total if limit is None else min(total, limit)


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""


def _cpu_name() -> str:
    for line in _cpuinfo().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cpu_flags() -> set[str]:
    for line in _cpuinfo().splitlines():
        if line.startswith(("flags", "Features")):
            return set(line.partition(":")[2].split())
    return set()


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _gpus(visible: str | None) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves visible, and what could not be read."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return (), ()
    except pynvml.NVMLError as error:
        return (), (f"NVML does not answer ({error}): GPU facts are unknown.",)
    try:
        gpus = tuple(_gpu(index) for index in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError as error:
        return (), (f"NVML stopped answering ({error}): GPU facts are unknown.",)
    finally:
        pynvml.nvmlShutdown()
    found = visible_gpus(gpus, visible)
    if visible and not found:
        return (), (f"CUDA_VISIBLE_DEVICES={visible} names no whole GPU: its facts are unknown.",)
    return found, ()


def visible_gpus(gpus: tuple[Gpu, ...], visible: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs named by a CUDA_VISIBLE_DEVICES value: indices or UUID prefixes, in order."""
    if visible is None:
        return gpus
    chosen: list[Gpu] = []
    for entry in filter(None, (part.strip() for part in visible.split(","))):
        found = (
            [gpus[int(entry)]]
            if entry.isdigit() and int(entry) < len(gpus)
            else [g for g in gpus if g.uuid.startswith(entry)]
        )
        if not found:
            break  # CUDA itself stops at the first entry it does not know
        chosen.append(found[0])
    return tuple(chosen)


def _gpu(index: int) -> Gpu:
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        compute_capability=(int(major), int(minor)),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
