"""Facts about the machine, read from psutil, cgroup files and NVML.

torch is not used, because the parent process must not create a CUDA context. A fact that cannot be
read becomes a warning for the user instead of an error.

NVML tells of GPUs before a program runs, and not always what the program gets: it needs its library
in the container, lists a GPU that MIG splits as a whole, and numbers GPUs by their PCI bus, where
CUDA puts the fastest first unless CUDA_DEVICE_ORDER is PCI_BUS_ID (CUDA Programming Guide, 5.2
"CUDA Environment Variables"). So once a program trains on GPUs, ``as_seen_by`` takes what its own
torch says of them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import psutil

from autotune.machine import cgroups
from autotune.machine.kernel_files import text_of

DRIVER = "NVIDIA driver"
PACKAGES = ("torch", "torchvision", "optuna", "autotune-torch")
# bfloat16 instruction sets as /proc/cpuinfo names them: the first three of x86, the last of ARM
BF16_CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"})
# NVIDIA's driver makes it, and a container that is given a GPU has it
DRIVER_NODE = Path("/dev/nvidiactl")
DRIVER_VERSION = Path("/sys/module/nvidia/version")  # of the kernel's module, also in containers
UNKNOWN = "GPU facts are unknown until the program says what it sees."


@dataclass(frozen=True)
class Gpu:
    """One CUDA device, a whole GPU or a MIG slice, as NVML or the program's torch reports it.

    Attributes:
        uuid: NVML's id, which also works in CUDA_VISIBLE_DEVICES.
        memory_bytes: Total memory of the device; None where NVML does not say, as of a GPU that
            shares the host's memory.
        is_used: Whether the program was seen to use it; True as long as no program has run.
        usable_bytes: What torch may reserve of a device in use: its memory without what contexts,
            a display and other programs held when the program trained; None where unknown.
    """

    name: str
    uuid: str
    memory_bytes: int | None
    compute_capability: tuple[int, int] | None
    is_used: bool = True
    usable_bytes: int | None = None


@dataclass(frozen=True)
class Hardware:
    """What this machine offers to the program, with the limits of containers applied.

    Attributes:
        cpu_quota: Cores that may be used at once, from CPU affinity and cgroup quota; at least 1.
        cpu_flags: The CPU's instruction-set flags that matter to a knob.
        memory_bytes: RAM, or the cgroup's limit if that is lower.
        shm_bytes: Free bytes in /dev/shm; None if it does not exist.
        gpus: The GPUs that CUDA_VISIBLE_DEVICES leaves visible, in its order, or those that a
            program sees, in the program's order.
        versions: Versions of Python, of the GPUs' driver, and of those of ``PACKAGES`` that are
            installed, by name.
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
    warnings: tuple[str, ...] = ()

    @property
    def supports_bf16_cpu(self) -> bool:
        """Whether the CPU multiplies bfloat16 natively; without that, autocast is slow."""
        return bool(self.cpu_flags)

    @property
    def supports_bf16_gpu(self) -> bool:
        """Whether the GPUs in use multiply bfloat16 natively: Ampere (8.0) and later."""
        return self.compute_capability is not None and self.compute_capability >= (8, 0)

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """The lowest of the GPUs in use; None without one, or if one's is unknown."""
        known = [g.compute_capability for g in self.used_gpus if g.compute_capability is not None]
        return min(known) if known and len(known) == len(self.used_gpus) else None

    @property
    def used_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that the program uses, or may use as long as none has run."""
        return tuple(gpu for gpu in self.gpus if gpu.is_used)

    def capacity_bytes(self, *, on_device: bool) -> int:
        """Return the memory that a config may fill: of the GPU with least room, or of the host."""
        known = (gpu.usable_bytes or gpu.memory_bytes for gpu in self.used_gpus)
        sizes = [size for size in known if size is not None]
        return min(sizes) if on_device and sizes else self.memory_bytes

    def as_seen_by(self, devices: tuple[Gpu, ...]) -> Hardware:
        """Return the machine with the GPUs that a program sees; unchanged for one on the CPU."""
        return replace(self, gpus=devices) if devices else self

    def differences(self, other: Hardware) -> list[str]:
        """Return what affects speed and differs in *other*, the machine of now, as clauses."""
        pairs = {
            "CPU": (self.cpu_name, other.cpu_name),
            "cores": (self.cpu_quota, other.cpu_quota),
            "GPUs": (self.gpus_named, other.gpus_named),
            **{
                name: (self.versions.get(name, "none"), other.versions.get(name, "none"))
                for name in ("python", "torch")
            },
        }
        return [
            f"{what}: {a} during the search, {b} now"
            for what, (a, b) in pairs.items()
            if a != b and None not in {a, b}
        ]

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits, equal for machines whose measurements may be pooled.

        Of the CPU, the cores that may be used, the GPUs that the program uses, their driver, torch
        and Python.
        """
        gpus = [(gpu.name, gpu.memory_bytes) for gpu in self.used_gpus]
        versions = [self.versions.get(name, "none") for name in ("python", "torch", DRIVER)]
        facts = json.dumps([self.cpu_name, self.cpu_quota, gpus, versions])
        return hashlib.sha256(facts.encode()).hexdigest()[:12]

    @property
    def named(self) -> str:
        """GPUs, CPU and cores in a few words."""
        counts = Counter(gpu.name for gpu in self.used_gpus)
        gpus = [name if count == 1 else f"{count}x {name}" for name, count in counts.items()]
        cores = f"{self.cpu_quota} core{'s' * (self.cpu_quota != 1)}"
        return ", ".join([*gpus, self.cpu_name, cores])

    @property
    def gpus_named(self) -> str | None:
        """The GPUs' names, for comparing machines; None if they could not be read."""
        unread = None if self.warnings else "none"
        return ", ".join(gpu.name for gpu in self.gpus) or unread


def detect(visible: str | None = None) -> Hardware:
    """Read the facts of this machine.

    A fact that cannot be read is reported in ``warnings`` instead of raised as an error.
    """
    gpus, warnings = _gpus(os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible)
    return Hardware(
        cpu_name=_of_cpu("model name") or platform.processor() or platform.machine(),
        cpu_quota=cpu_quota(),
        cpu_flags=tuple(sorted(_cpu_flags() & BF16_CPU_FLAGS)),
        memory_bytes=memory_bytes(),
        shm_bytes=shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else None,  # noqa: S108
        gpus=gpus,
        has_cxx_compiler=any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++"))),
        system=f"{platform.system()} {platform.release()}",
        versions=_versions(),
        warnings=warnings,
    )


def cpu_quota(proc: Path = cgroups.PROC) -> int:
    """Return the number of cores that this process may use at once, at least 1."""
    # Python has sched_getaffinity only on Linux and some other Unix systems.
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = cgroups.cpu_limit(proc)
    return max(1, min(allowed or 1, math.ceil(quota) if quota else allowed or 1))


def memory_bytes() -> int:
    """Return the RAM that this process may use: the machine's, or a lower cgroup limit."""
    total = int(psutil.virtual_memory().total)
    limit = cgroups.memory_limit()
    return total if limit is None else min(total, limit)


def _of_cpu(*names: str) -> str:
    """Return the value of the first line of /proc/cpuinfo with one of these names; else empty."""
    lines = text_of(Path("/proc/cpuinfo")).splitlines()
    found = (line.partition(":")[2].strip() for line in lines if line.startswith(names))
    return next(found, "")


def _cpu_flags() -> set[str]:
    return set(_of_cpu("flags", "Features").split())


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if driver := text_of(DRIVER_VERSION).strip():
        versions[DRIVER] = driver
    return versions


def _gpus(visible: str | None) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves visible, and what could not be read."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:  # no NVIDIA driver: an ordinary CPU machine
        lacks = f"There is an NVIDIA driver, but NVML (libnvidia-ml.so.1) is missing: {UNKNOWN}"
        return (), (lacks,) if DRIVER_NODE.exists() else ()
    except pynvml.NVMLError as error:
        return (), (f"NVML does not answer ({error}): {UNKNOWN}",)
    gpus: list[Gpu] = []
    warnings: list[str] = []
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                gpus.append(_gpu(index))
            except pynvml.NVMLError as error:  # it was lost, or this user may not see it
                warnings.append(f"GPU {index} does not answer ({error}): {UNKNOWN}")
    except pynvml.NVMLError as error:
        return (), (f"NVML stopped answering ({error}): {UNKNOWN}",)
    finally:
        pynvml.nvmlShutdown()
    found = visible_gpus(tuple(gpus), visible)
    if visible and not found:  # for example a MIG slice
        warnings.append(f"CUDA_VISIBLE_DEVICES={visible} is not a whole GPU: {UNKNOWN}")
    return found, tuple(warnings)


def visible_gpus(gpus: tuple[Gpu, ...], visible: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that a CUDA_VISIBLE_DEVICES value selects, in its order.

    With GPUs of several models, an index may mean another GPU to CUDA, see above; the program then
    tells which.
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
    memory_bytes = compute_capability = None
    with suppress(pynvml.NVMLError):  # "Not Supported" where GPU and CPU share one memory
        memory_bytes = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    with suppress(pynvml.NVMLError):
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        compute_capability = (int(major), int(minor))
    return Gpu(
        name=pynvml.nvmlDeviceGetName(handle),
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        memory_bytes=memory_bytes,
        compute_capability=compute_capability,
    )


class Peak(NamedTuple):
    """Peak dense FLOP/s of one GPU model as NVIDIA publishes it; None if it lacks such a unit.

    Attributes:
        name_pattern: Regular expression for all of NVML's device name after ``NVIDIA``, ``Tesla``
            or ``GeForce``. The whole name must match: an L4 is not an L40S, and an RTX 4090 is not
            an RTX 4090 D.
        fp32: CUDA cores.
        tf32: Tensor cores.
        bf16: Tensor cores with fp32 accumulation.
        fp16: Tensor cores with fp32 accumulation, which torch's mixed precision uses. GeForce cards
            run it at half the rate of fp16 accumulation, which advertisements quote.
    """

    name_pattern: str
    fp32: float
    tf32: float | None
    bf16: float | None
    fp16: float


# From NVIDIA's datasheet of each model at www.nvidia.com/en-us/data-center, and for cards without
# one from the whitepaper of their architecture: GA102 v2.1 (A6000, RTX 3090), Ada, appendix A (RTX
# 4090), RTX Blackwell, table 3 (RTX 5090). Figures with sparsity are halved.
PEAKS: tuple[Peak, ...] = (
    Peak(r"T4", 8.1e12, None, None, 65e12),
    Peak(r"V100-PCIE-(16|32)GB", 14e12, None, None, 112e12),
    Peak(r"V100-SXM2-(16|32)GB", 15.7e12, None, None, 125e12),
    Peak(r"V100S-PCIE-32GB", 16.4e12, None, None, 130e12),
    # SXM and PCIe have the same peaks; a 64 GB A100 is a custom part with more units.
    Peak(r"A100-(SXM4|PCIE)-(40|80)GB|A100 80GB PCIe", 19.5e12, 156e12, 312e12, 312e12),
    Peak(r"A10", 31.2e12, 62.5e12, 125e12, 125e12),
    Peak(r"A30", 10.3e12, 82e12, 165e12, 165e12),
    Peak(r"A40", 37.4e12, 74.8e12, 149.7e12, 149.7e12),
    Peak(r"RTX A6000", 38.7e12, 77.4e12, 154.8e12, 154.8e12),
    Peak(r"L4", 30.3e12, 60e12, 121e12, 121e12),
    Peak(r"L40", 90.5e12, 90.5e12, 181.05e12, 181.05e12),
    Peak(r"L40S", 91.6e12, 183e12, 362.05e12, 362.05e12),
    Peak(r"H100 80GB HBM3", 67e12, 494.5e12, 989.5e12, 989.5e12),
    Peak(r"H100 PCIe", 51e12, 378e12, 756.5e12, 756.5e12),
    Peak(r"H100 NVL", 60e12, 417.5e12, 835.5e12, 835.5e12),
    Peak(r"H200", 67e12, 494.5e12, 989.5e12, 989.5e12),
    Peak(r"H200 NVL", 60e12, 417.5e12, 835.5e12, 835.5e12),
    Peak(r"B200", 75e12, 1100e12, 2250e12, 2250e12),
    Peak(r"RTX 3090", 35.6e12, 35.6e12, 71e12, 71e12),
    Peak(r"RTX 4090", 82.6e12, 82.6e12, 165.2e12, 165.2e12),
    Peak(r"RTX 5090", 104.8e12, 104.8e12, 209.5e12, 209.5e12),
)


def peak_flops(gpu_name: str, dtype: str) -> float | None:
    """Return the published peak dense FLOP/s of a GPU, by its name as NVML reports it.

    None if it is not in the table or has no unit for this dtype. CPUs are not in it: their clock
    under load and their number of vector units are not in their names.
    """
    for peak in PEAKS:
        if re.fullmatch(rf"(NVIDIA )?((Tesla|GeForce) )?({peak.name_pattern})", gpu_name):
            flops: float | None = getattr(peak, dtype)
            return flops
    return None
