"""What the NVIDIA driver reports, by NVML (pynvml): memory, and what disturbs a GPU.

Covered: memory in use by all and by the rig's processes; clocks and why they are held down,
temperature, utilization, other processes and energy of each GPU, MIG slices included.
Not covered: processes whose ids the driver gives in another pid namespace, as in some containers;
the rig's memory is unknown there, and an id that by chance exists here too counts as another's.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from types import ModuleType
from typing import Any

import psutil

from autotune.machine.probes.base import Probe
from autotune.measurement.interference import GpuReading
from autotune.measurement.measurement import Memory

# https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html; the constants are
# pynvml's. Left out, because neither an idle GPU nor a setting nor a power limit that heavy work
# reaches is a disturbance: GpuIdle, ApplicationsClocksSetting, DisplayClockSetting, SwPowerCap.
SLOWDOWNS = (
    ("nvmlClocksEventReasonHwSlowdown", "hardware slowdown"),
    ("nvmlClocksEventReasonHwThermalSlowdown", "hardware thermal slowdown"),
    ("nvmlClocksEventReasonSwThermalSlowdown", "software thermal slowdown"),
    ("nvmlClocksEventReasonHwPowerBrakeSlowdown", "hardware power brake"),
    ("nvmlClocksEventReasonSyncBoost", "sync boost"),
)


class NvmlMemory(Probe):
    """Peaks over samples of the memory in use on the visible GPUs: in all, and by the rig.

    Args:
        uuids: The GPUs to read; none makes a probe that reads nothing.
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
        """Sum up the GPUs once; a driver that stops answering ends the probe, not the search."""
        self._used_peak_bytes = _larger(self._used_peak_bytes, self.used_bytes())
        self._process_peak_bytes = _larger(self._process_peak_bytes, self._process_bytes())

    def read(self, memory: Memory) -> Memory:
        """Fill in the peaks."""
        return replace(
            memory,
            device_used_bytes=self._used_peak_bytes,
            device_process_bytes=self._process_peak_bytes,
        )

    def used_bytes(self) -> int | None:
        """Return what all processes use now, None where the driver does not say."""
        infos = [
            self._driver.ask("nvmlDeviceGetMemoryInfo", handle)
            for handle in self._driver.handles().values()
        ]
        if any(info is None for info in infos):
            self._driver.is_alive = False
            return None
        return sum(int(info.used) for info in infos) if infos else None

    def _process_bytes(self) -> int | None:
        """What the rig's processes use now, None unless the driver knows it of each of them."""
        lists = [
            self._driver.ask("nvmlDeviceGetComputeRunningProcesses", handle)
            for handle in self._driver.handles().values()
        ]
        if self._pid is None or not any(lists) or any(listed is None for listed in lists):
            return None
        ours = _tree(self._pid)
        sizes = [process.usedGpuMemory for gpu in lists for process in gpu if process.pid in ours]
        return None if None in sizes else sum(map(int, sizes)) or None


class GpuWatch:
    """Readings of what could disturb a block, one per GPU and sample.

    What a GPU does not report, as most of it on a MIG slice, stays None; without GPUs or without
    a driver that answers there are no readings.

    Args:
        uuids: The GPUs to read, MIG slices by their own ids.
        pid: Root of the process tree whose use of a GPU is our own; None for this process's.
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
        """All readings since the last reset, oldest first."""
        return tuple(self._readings)

    def reset(self) -> None:
        """Forget the readings."""
        self._readings.clear()

    def sample(self, now_s: float) -> None:
        """Read each GPU once; *now_s* is ``time.monotonic()``."""
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
        """Ids of all processes on a GPU."""
        compute = self._driver.ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()
        graphics = self._driver.ask("nvmlDeviceGetGraphicsRunningProcesses", handle) or ()
        return frozenset(process.pid for process in (*compute, *graphics))


class _Driver:
    """NVML and the GPUs that one reader asks it about."""

    def __init__(self, uuids: tuple[str, ...], nvml: ModuleType | None) -> None:
        self._uuids = uuids
        self.nvml: Any = nvml or importlib.import_module("pynvml")
        self.is_alive = bool(uuids) and self._init()

    def handles(self) -> dict[str, Any]:
        """The GPUs by UUID; none once the driver has failed to find one of them."""
        if not self.is_alive:
            return {}
        try:
            return {uuid: self.nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in self._uuids}
        except self.nvml.NVMLError:
            self.is_alive = False
            return {}

    def ask(self, function: str, *args: Any) -> Any:
        """The answer of one NVML function, None where this pynvml, driver or GPU has none."""
        try:
            return getattr(self.nvml, function)(*args)
        except (self.nvml.NVMLError, self.nvml.NVMLLibraryMismatchError, AttributeError):
            return None  # the second says that a driver is too old to list processes

    def _init(self) -> bool:
        try:
            self.nvml.nvmlInit()
        except self.nvml.NVMLError:
            return False
        return True


def _larger(peak_bytes: int | None, now_bytes: int | None) -> int | None:
    return max((size for size in (peak_bytes, now_bytes) if size is not None), default=None)


def _tree(pid: int) -> frozenset[int]:
    """Ids of a process and all its descendants, none when it has gone."""
    try:
        root = psutil.Process(pid)
        return frozenset(process.pid for process in (root, *root.children(recursive=True)))
    except psutil.Error:
        return frozenset()


def _strangers(listed: frozenset[int], pid: int) -> frozenset[int]:
    """Those of the listed processes that are not in a tree.

    An id that does not exist here has ended, or is of another pid namespace and may be our own.
    Without the tree nobody can be told apart from it.
    """
    ours = _tree(pid) if listed else frozenset()
    return (listed & frozenset(psutil.pids())) - ours if ours else frozenset()
