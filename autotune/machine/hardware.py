"""Facts about the machine, read from psutil, cgroup files and NVML.

torch is not used, because the parent process must not create a CUDA context. A fact that cannot be
read becomes a warning for the user instead of an error.
"""

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
# bfloat16 instruction sets as /proc/cpuinfo names them: the first three of x86, the last of ARM
BF16_CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"})


@dataclass(frozen=True)
class Gpu:
    """One CUDA device as NVML reports it.

    Attributes:
        uuid: NVML's id, which also works in CUDA_VISIBLE_DEVICES.
        memory_bytes: Total memory of the device.
        compute_capability: ``(major, minor)``.
    """

    name: str
    uuid: str
    memory_bytes: int
    compute_capability: tuple[int, int]


@dataclass(frozen=True)
class Hardware:
    """What this machine offers to the program, with the limits of containers applied.

    Attributes:
        cpu_quota: Cores that may be used at once, from CPU affinity and cgroup quota; at least 1.
        cpu_flags: The CPU's instruction-set flags that matter to a knob.
        memory_bytes: RAM, or the cgroup's limit if that is lower.
        shm_bytes: Free bytes in /dev/shm; None if it does not exist.
        gpus: The GPUs that CUDA_VISIBLE_DEVICES leaves visible, in its order.
        has_cxx_compiler: Whether a C++ compiler is on PATH; torch.compile on the CPU needs one.
        system: Name and release of the operating system.
        versions: Versions of Python and of those of ``PACKAGES`` that are installed, by name.
        libraries: Shared libraries that a knob can preload, by soname.
        warnings: What could not be read, as sentences for the user.
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
    warnings: tuple[str, ...] = ()

    @property
    def supports_bf16_cpu(self) -> bool:
        """Whether the CPU multiplies bfloat16 natively; without that, autocast is slow."""
        return bool(self.cpu_flags)

    @property
    def supports_bf16_gpu(self) -> bool:
        """Whether every visible GPU multiplies bfloat16 natively: Ampere (8.0) and later."""
        return bool(self.gpus) and all(g.compute_capability >= (8, 0) for g in self.gpus)

    def capacity_bytes(self, *, on_device: bool) -> int:
        """Return the memory that a config may fill: of one GPU, or of the host."""
        return self.gpus[0].memory_bytes if on_device and self.gpus else self.memory_bytes

    def differences(self, other: Hardware) -> list[str]:
        """Return the differences from *other* that affect speed, as clauses for the user.

        They read ``cores: 8 during the search, 4 now``. "During the search" is this object, such as
        the machine recorded in a best.yaml; "now" is *other*.
        """
        pairs = {
            "CPU": (self.cpu_name, other.cpu_name),
            "cores": (self.cpu_quota, other.cpu_quota),
            "GPUs": (self._gpus_named, other._gpus_named),
            **{
                name: (self.versions.get(name, "none"), other.versions.get(name, "none"))
                for name in ("python", "torch")
            },
        }
        return [
            f"{what}: {a} during the search, {b} now" for what, (a, b) in pairs.items() if a != b
        ]

    @property
    def _gpus_named(self) -> str:
        return ", ".join(gpu.name for gpu in self.gpus) or "none"


def detect(visible: str | None = None) -> Hardware:
    """Read the facts of this machine.

    A fact that cannot be read is reported in ``warnings`` instead of raised as an error.

    Args:
        visible: The program's CUDA_VISIBLE_DEVICES; None takes this process's own.
    """
    gpus, warnings = _gpus(os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible)
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
        warnings=warnings,
    )


def _can_be_loaded(soname: str) -> bool:
    """Return whether the dynamic linker can find a library, according to its own cache."""
    try:
        cache = Path("/etc/ld.so.cache").read_bytes()
    except OSError:
        return False
    return soname.encode() + b"\0" in cache


def cpu_quota(proc: Path = cgroups.PROC) -> int:
    """Return the number of cores that this process may use at once, at least 1.

    A fractional cgroup quota is rounded up.

    Args:
        proc: Folder that says which control groups contain the process; tests pass their own.
    """
    # Python has sched_getaffinity only on Linux and some other Unix systems.
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = cgroups.cpu_limit(proc)
    return max(1, min(allowed or 1, math.ceil(quota) if quota else allowed or 1))


def memory_bytes(proc: Path = cgroups.PROC) -> int:
    """Return the RAM that this process may use: the machine's, or a lower cgroup limit."""
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
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves visible, and what could not be read."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:  # no NVIDIA driver: an ordinary CPU machine
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
    if visible and not found:  # for example a MIG slice
        return (), (f"CUDA_VISIBLE_DEVICES={visible} is not a whole GPU: GPU facts are unknown.",)
    return found, ()


def visible_gpus(gpus: tuple[Gpu, ...], visible: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that a CUDA_VISIBLE_DEVICES value selects, in its order.

    Args:
        gpus: All GPUs, in NVML's order.
        visible: Indices or UUID prefixes, separated by commas. None selects all GPUs, an empty text
            none.
    """
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
