"""Memory of NVIDIA GPUs and what disturbs them, as the driver reports it through NVML (pynvml).

Covered: memory in use by all processes and by the rig's own; clocks and the reasons for lowered
clocks, temperature, utilization, other processes and energy of each GPU, including MIG slices.
Not covered: processes whose ids the driver reports in another pid namespace, as in some containers.
There the rig's own memory is unknown, and an id that happens to exist here counts as a foreign
process.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from types import ModuleType
from typing import Any

import psutil

from autotune.machine.probes.base import Probe
from autotune.machine.process_tree import tree
from autotune.measurement.interference import GpuReading
from autotune.measurement.memory import Memory

# Source: https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html, with
# pynvml's names. GpuIdle, ApplicationsClocksSetting, DisplayClockSetting and SwPowerCap are left
# out: an idle GPU, a setting, or a power limit that heavy work reaches is not a disturbance.
SLOWDOWNS = (
    ("nvmlClocksEventReasonHwSlowdown", "hardware slowdown"),
    ("nvmlClocksEventReasonHwThermalSlowdown", "hardware thermal slowdown"),
    ("nvmlClocksEventReasonSwThermalSlowdown", "software thermal slowdown"),
    ("nvmlClocksEventReasonHwPowerBrakeSlowdown", "hardware power brake"),
    ("nvmlClocksEventReasonSyncBoost", "sync boost"),
)


class NvmlMemory(Probe):
    """Peak memory in use on the visible GPUs during a window: in total, and by the rig.

    Args:
        uuids: The GPUs to read; with an empty tuple nothing is read.
        pid: Root of the rig's process tree; without it the rig's own memory stays unknown.
        nvml: The module that talks to the driver; tests pass recorded readings.
    """

    def __init__(
        self, uuids: tuple[str, ...], pid: int | None = None, nvml: ModuleType | None = None
    ) -> None:
        self._pid = pid
        self._driver = _Driver(uuids, nvml)
        self._used_peak_bytes: int | None = None
        self._process_peak_bytes: int | None = None

    def reset(self) -> None:
        """Forget the peaks."""
        self._used_peak_bytes = self._process_peak_bytes = None

    def sample(self) -> None:
        """Read all GPUs once; if the driver stops answering, the probe stays silent afterwards."""
        self._used_peak_bytes = _larger(self._used_peak_bytes, self.used_bytes())
        self._process_peak_bytes = _larger(self._process_peak_bytes, self._process_bytes())

    def read(self, memory: Memory) -> Memory:
        """Return *memory* with the peaks filled in."""
        return replace(
            memory,
            device_used_bytes=self._used_peak_bytes,
            device_process_bytes=self._process_peak_bytes,
        )

    def used_bytes(self) -> int | None:
        """Return the bytes that all processes use now; None if the driver does not report it."""
        infos = [
            self._driver.ask("nvmlDeviceGetMemoryInfo", handle)
            for handle in self._driver.handles().values()
        ]
        if any(info is None for info in infos):
            self._driver.is_alive = False
            return None
        return sum(int(info.used) for info in infos) if infos else None

    def _process_bytes(self) -> int | None:
        """Return the bytes that the rig's processes use now.

        None unless the driver reports the memory of every one of them.
        """
        lists = [
            self._driver.ask("nvmlDeviceGetComputeRunningProcesses", handle)
            for handle in self._driver.handles().values()
        ]
        if self._pid is None or not any(lists) or any(listed is None for listed in lists):
            return None
        # An id without a match here is another user's, or the rig's in another pid namespace; in
        # the second case the sum is 0, which is reported as unknown.
        ours = _tree_pids(self._pid)
        sizes = [process.usedGpuMemory for gpu in lists for process in gpu if process.pid in ours]
        return None if None in sizes else sum(map(int, sizes)) or None


class GpuWatch:
    """Readings of what could disturb a block, one per GPU and sample.

    A field that a GPU does not report stays None; a MIG slice reports few of them. Without GPUs, or
    if the driver does not answer, there are no readings.

    Args:
        uuids: The GPUs to read; MIG slices by their own ids.
        pid: Root of the process tree that counts as ours; None for this process's tree.
        nvml: The module that talks to the driver; tests pass recorded readings.
    """

    def __init__(
        self, uuids: tuple[str, ...], pid: int | None, nvml: ModuleType | None = None
    ) -> None:
        self._pid = os.getpid() if pid is None else pid
        self._driver = _Driver(uuids, nvml)
        self._readings: list[GpuReading] = []

    @property
    def readings(self) -> tuple[GpuReading, ...]:
        """All readings since the last reset, the oldest first."""
        return tuple(self._readings)

    def reset(self) -> None:
        """Forget the readings."""
        self._readings.clear()

    def sample(self, now_s: float) -> None:
        """Read each GPU once.

        Args:
            now_s: The time by ``time.monotonic()``, by which readings are matched with blocks.
        """
        handles = self._driver.handles()
        users = {uuid: self._users(handle) for uuid, handle in handles.items()}
        strangers = _strangers(frozenset().union(*users.values()), self._pid)
        for uuid, handle in handles.items():
            reading = self._reading(GpuReading(now_s, uuid), handle)
            foreign = tuple(sorted(users[uuid] & strangers))
            self._readings.append(replace(reading, foreign_processes=foreign))

    def _reading(self, reading: GpuReading, handle: Any) -> GpuReading:
        ask, nvml = self._driver.ask, self._driver.nvml
        utilization = ask("nvmlDeviceGetUtilizationRates", handle)
        energy_mj = ask("nvmlDeviceGetTotalEnergyConsumption", handle)
        return replace(
            reading,
            sm_clock_mhz=ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
            max_sm_clock_mhz=ask("nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM),
            slowdowns=self._slowdowns(handle),
            temperature_c=ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
            utilization_pct=None if utilization is None else int(utilization.gpu),
            energy_j=None if energy_mj is None else energy_mj / 1000,
        )

    def _slowdowns(self, handle: Any) -> tuple[str, ...]:
        reasons = self._driver.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:  # the name before driver 535, with the same bits
            reasons = self._driver.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        nvml = self._driver.nvml
        return tuple(word for name, word in SLOWDOWNS if (reasons or 0) & getattr(nvml, name))

    def _users(self, handle: Any) -> frozenset[int]:
        """Return the ids of all processes on a GPU."""
        compute = self._driver.ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()
        graphics = self._driver.ask("nvmlDeviceGetGraphicsRunningProcesses", handle) or ()
        return frozenset(process.pid for process in (*compute, *graphics))


class _Driver:
    """NVML together with the GPUs that one reader queries."""

    def __init__(self, uuids: tuple[str, ...], nvml: ModuleType | None) -> None:
        self._uuids = uuids
        self.nvml: Any = nvml or importlib.import_module("pynvml")
        self.is_alive = bool(uuids) and self._init()

    def handles(self) -> dict[str, Any]:
        """Return the GPUs' handles by UUID; empty once the driver failed to find one of them."""
        if not self.is_alive:
            return {}
        try:
            return {uuid: self.nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in self._uuids}
        except self.nvml.NVMLError:
            self.is_alive = False
            return {}

    def ask(self, function: str, *args: Any) -> Any:
        """Call one NVML function; None if this pynvml, driver or GPU does not support it."""
        try:
            return getattr(self.nvml, function)(*args)
        except (self.nvml.NVMLError, self.nvml.NVMLLibraryMismatchError, AttributeError):
            return None  # LibraryMismatch: the driver is too old to list processes

    def _init(self) -> bool:
        try:
            self.nvml.nvmlInit()
        except self.nvml.NVMLError:
            return False
        return True


def _larger(peak_bytes: int | None, now_bytes: int | None) -> int | None:
    return max((size for size in (peak_bytes, now_bytes) if size is not None), default=None)


def _tree_pids(pid: int) -> frozenset[int]:
    """Return the ids of a process and its descendants; empty if it has ended."""
    return frozenset(process.pid for process in tree(pid))


def _strangers(listed: frozenset[int], pid: int) -> frozenset[int]:
    """Return those of the listed processes that do not belong to a process tree.

    An id that does not exist here has ended, or belongs to another pid namespace and may be our
    own. If the tree itself has ended, nothing can be told apart and the result is empty.
    """
    ours = _tree_pids(pid) if listed else frozenset()
    return (listed & frozenset(psutil.pids())) - ours if ours else frozenset()
