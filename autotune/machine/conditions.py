"""Conditions of this machine that decide how fast a training can be: facts, and what to change.

Read from the kernel's files, without root and without a measurement. Unknown is None, never 0.

Covered: Linux. Not covered: settings of the BIOS, clocks of memory, PCIe links.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from autotune.machine import cgroups
from autotune.machine.kernel_files import text_of

FAST_GOVERNORS = {"performance", "schedutil", "ondemand"}  # the last two follow the load
# With these drivers, the governor "powersave" follows the load up to the highest frequency
FOLLOW_LOAD = {"intel_pstate", "amd-pstate-epp"}
SMALL_SHM = 1 << 30  # Docker's default is 64 MiB; a batch of images may take some hundred
THROTTLED_SHARE = 0.05  # of the periods in which a group ran
SYS = Path("/sys")


@dataclass(frozen=True)
class Conditions:
    """What surrounds the processes of this machine.

    Attributes:
        quota: Cores that the tightest CPU quota allows, as a fraction; None without a quota.
        throttled_share: Share of the periods in which a quota held a group back; None without one.
        throttle_events: Times that cores were slowed down by heat since the machine started; None
            if the system does not tell.
        numa_nodes: Cores of each NUMA node, as the kernel writes them: ``0-31``.
        driver_cuda: Newest CUDA version that the driver supports, as ``(major, minor)``.
    """

    cores: int
    allowed: int
    quota: float | None = None
    throttled_share: float | None = None
    governors: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    throttle_events: int | None = None
    numa_nodes: tuple[str, ...] = ()
    shm_bytes: int | None = None
    driver: str = ""
    driver_cuda: tuple[int, int] | None = None
    torch_cuda: tuple[int, int] | None = None

    @property
    def facts(self) -> Mapping[str, str]:
        """Short lines for the user, by name; what is unknown is left out."""
        facts = {"cores": f"{self.allowed} of {self.cores} may be used"}
        if self.quota is not None:
            held = self.throttled_share
            told = "" if held is None else f", used up in {held:.0%} of its periods"
            facts["CPU quota"] = f"{self.quota:g} cores{told}"
        if self.governors:
            facts["governor"] = ", ".join(self.governors)
        if self.throttle_events is not None:
            facts["slowed by heat"] = f"{self.throttle_events:,} times since the machine started"
        if self.numa_nodes:
            nodes = ", ".join(f"{n}: {cores}" for n, cores in enumerate(self.numa_nodes))
            facts["NUMA nodes"] = f"{len(self.numa_nodes)} (cores of {nodes})"
        if self.driver:
            facts["driver"] = f"{self.driver}{_for_cuda(', up to CUDA ', self.driver_cuda)}"
            if self.torch_cuda:
                facts["torch"] = _for_cuda("built for CUDA ", self.torch_cuda)
        return facts

    @property
    def warnings(self) -> Iterator[str]:
        """What slows this machine down, each with what to do about it."""
        if self.quota is not None and self.quota < self.allowed:
            yield (
                f"A CPU quota of {self.quota:g} cores is below the {self.allowed} cores that "
                "programs see, so libraries start too many threads: set OMP_NUM_THREADS, or give "
                "the container whole cores (--cpuset-cpus)."
            )
        if (self.throttled_share or 0.0) > THROTTLED_SHARE:
            yield (
                f"The CPU quota held this group back in {self.throttled_share:.0%} of its periods. "
                "Raise it, or use fewer threads and workers."
            )
        slow = sorted(set(self.governors) - FAST_GOVERNORS)
        if slow and not set(self.drivers) & FOLLOW_LOAD:
            yield (
                f"The CPU's frequency governor is {', '.join(slow)}: cores run below their speed. "
                "As root: cpupower frequency-set -g performance."
            )
        if self.shm_bytes is not None and self.shm_bytes < SMALL_SHM:
            yield (
                f"Shared memory (/dev/shm) has {self.shm_bytes / 2**20:,.0f} MiB. Workers hand "
                "batches over in it, and die with SIGBUS if it is full: start the container with "
                "--shm-size=8g."
            )
        if len(self.numa_nodes) > 1 and self.allowed == self.cores:
            yield (
                f"The cores belong to {len(self.numa_nodes)} NUMA nodes. Memory of another node is "
                "slower: bind each rank to one (torchrun --numa-binding, or numactl)."
            )
        if self.driver_cuda and self.torch_cuda and self.driver_cuda[0] < self.torch_cuda[0]:
            yield (
                f"torch was built for CUDA{_for_cuda(' ', self.torch_cuda)}, and the driver "
                f"supports up to{_for_cuda(' ', self.driver_cuda)}: update the driver, or install "
                "torch for that version."
            )


def read(sys: Path = SYS, proc: Path = cgroups.PROC) -> Conditions:
    """Return the conditions of this machine."""
    driver, driver_cuda = _driver()
    cpus = sys / "devices/system/cpu"
    quotas = cgroups.cpu_quotas(proc)
    stats = [dict(map(str.split, text_of(path / "cpu.stat").splitlines())) for path in quotas]
    ran = [stat for stat in stats if int(stat.get("nr_periods", 0))]
    shares = [int(stat["nr_throttled"]) / int(stat["nr_periods"]) for stat in ran]
    heat = _values(cpus, "cpu[0-9]*/thermal_throttle/core_throttle_count")
    return Conditions(
        cores=os.cpu_count() or 1,
        allowed=len(os.sched_getaffinity(0)),
        quota=min(quotas.values(), default=None),
        throttled_share=max(shares, default=None),
        governors=tuple(sorted(set(_values(cpus, "cpu[0-9]*/cpufreq/scaling_governor")))),
        drivers=tuple(sorted(set(_values(cpus, "cpu[0-9]*/cpufreq/scaling_driver")))),
        throttle_events=sum(map(int, heat)) if heat else None,
        numa_nodes=tuple(_values(sys / "devices/system/node", "node[0-9]*/cpulist")),
        shm_bytes=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None,  # noqa: S108
        driver=driver,
        driver_cuda=driver_cuda,
        torch_cuda=_torch_cuda(),
    )


def _driver() -> tuple[str, tuple[int, int] | None]:
    import pynvml

    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            name = str(pynvml.nvmlSystemGetDriverVersion())
            cuda = int(pynvml.nvmlSystemGetCudaDriverVersion())  # 12080 is 12.8
        finally:
            pynvml.nvmlShutdown()
        return name, (cuda // 1000, cuda % 1000 // 10)
    return "", None


def _torch_cuda() -> tuple[int, int] | None:
    """Return the CUDA version that torch was built for, without importing torch."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    text = text_of(Path(found.origin).with_name("version.py"))
    version = re.search(r"^cuda\b.*= ['\"](\d+)\.(\d+)", text, re.MULTILINE)
    return None if version is None else (int(version[1]), int(version[2]))


def _for_cuda(before: str, version: tuple[int, int] | None) -> str:
    return "" if version is None else f"{before}{version[0]}.{version[1]}"


def _values(folder: Path, pattern: str) -> list[str]:
    return [text for path in sorted(folder.glob(pattern)) if (text := text_of(path).strip())]
