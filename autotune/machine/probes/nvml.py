"""Memory of NVIDIA GPUs and what disturbs them, as the driver reports it through NVML (pynvml).

Covered: memory in use by all processes and by the rig's own; clocks and the reasons for lowered
clocks, temperature, utilization, other processes and energy of each GPU, including MIG slices.
Another process disturbs by the time that its work is on the SMs. That it is on the GPU says little:
a display server always is, and a notebook may keep memory for days without computing.
Not covered: processes whose ids the driver reports in another pid namespace, as in some containers.
There the rig's own memory is unknown, and an id that happens to exist here counts as a foreign
process.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from time import time
from types import ModuleType
from typing import Any

import psutil

from autotune.machine.process_tree import tree
from autotune.measurement.readings import FOREIGN_SHARE, GpuReading, Memory

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
SM_S = 1.0  # how far back SM shares are asked for: the driver samples them up to once a second


class NvmlMemory:
    """Peak memory in use on the visible GPUs: in total, and by the rig."""

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
        """Read all GPUs once. Of a GPU that does not report its memory, the sum is unknown, too."""
        used = self.used_bytes()
        total = sum(used.values()) if used and len(used) == len(self._driver.uuids) else None
        self._used_peak_bytes = _larger(self._used_peak_bytes, total)
        self._process_peak_bytes = _larger(self._process_peak_bytes, self._process_bytes())

    def read(self, memory: Memory) -> Memory:
        """Return *memory* with the peaks filled in."""
        return replace(
            memory,
            device_used_bytes=self._used_peak_bytes,
            device_process_bytes=self._process_peak_bytes,
        )

    def used_bytes(self) -> dict[str, int]:
        """Return the bytes that all processes use now, by UUID; without GPUs that do not tell."""
        infos = {
            uuid: self._driver.ask("nvmlDeviceGetMemoryInfo", handle)
            for uuid, handle in self._driver.handles().items()
        }
        return {uuid: int(info.used) for uuid, info in infos.items() if info is not None}

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
        ours = {process.pid for process in tree(self._pid)}
        sizes = [process.usedGpuMemory for gpu in lists for process in gpu if process.pid in ours]
        return None if None in sizes else sum(map(int, sizes)) or None


class GpuWatch:
    """Readings of what could disturb turns, one per GPU and sample.

    A field that a GPU does not report stays None; a MIG slice reports few of them. Without GPUs, or
    if the driver does not answer, there are no readings. The process tree below *pid* counts as
    ours; None stands for this process.
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
        """Read each GPU once."""
        handles = self._driver.handles()
        users = {uuid: self._busy(handle) for uuid, handle in handles.items()}
        strangers = _strangers(frozenset().union(*users.values()), self._pid)
        ask, nvml = self._driver.ask, self._driver.nvml
        for uuid, handle in handles.items():
            energy_mj = ask("nvmlDeviceGetTotalEnergyConsumption", handle)
            reasons = ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
            if reasons is None:  # the name before driver 535, with the same bits
                reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
            reading = GpuReading(
                now_s,
                uuid,
                slowdowns=tuple(w for name, w in SLOWDOWNS if reasons & getattr(nvml, name, 0)),
                temperature_c=ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
                energy_j=None if energy_mj is None else energy_mj / 1000,
                foreign_processes=tuple(sorted(users[uuid] & strangers)),
            )
            self._readings.append(reading)

    def strangers(self) -> dict[str, dict[int, int | None]]:
        """Return who else is on each GPU to compute, idle or not; a process that also draws is not.

        Returns:
            By UUID and process id the memory that it holds; None if the driver does not say.
        """
        listed = {u: self._computing(handle) for u, handle in self._driver.handles().items()}
        foreign = _strangers(frozenset().union(*listed.values()), self._pid)
        return {
            uuid: {pid: sizes[pid] for pid in sorted(sizes.keys() & foreign)}
            for uuid, sizes in listed.items()
        }

    def _busy(self, handle: Any) -> frozenset[int]:
        """Return the ids of the processes that take a GPU's time, ours included.

        MIG slices, GPUs before Maxwell and WSL do not report who uses the SMs. There, each process
        that is on the GPU to compute counts.
        """
        since_us = int((time() - SM_S) * 1e6)
        samples = self._driver.ask(
            "nvmlDeviceGetProcessUtilization", handle, since_us, where_none_is_found=()
        )
        if samples is None:
            return frozenset(self._computing(handle))
        latest = {s.pid: s.smUtil for s in sorted(samples, key=lambda s: s.timeStamp)}
        return frozenset(pid for pid, pct in latest.items() if pct / 100 >= FOREIGN_SHARE)

    def _computing(self, handle: Any) -> dict[int, int | None]:
        """Return the memory of each process that computes on a GPU and does not draw, by its id."""
        compute = self._driver.ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()
        graphics = self._driver.ask("nvmlDeviceGetGraphicsRunningProcesses", handle) or ()
        drawing = {process.pid for process in graphics}
        return {p.pid: p.usedGpuMemory for p in compute if p.pid not in drawing}


class _Driver:
    """NVML together with the GPUs that one reader queries."""

    def __init__(self, uuids: tuple[str, ...], nvml: ModuleType | None) -> None:
        self.uuids = uuids
        self.nvml: Any = nvml or importlib.import_module("pynvml")
        self.is_alive = bool(uuids)
        try:
            if uuids:
                self.nvml.nvmlInit()
        except self.nvml.NVMLError:
            self.is_alive = False

    def handles(self) -> dict[str, Any]:
        """Return the GPUs' handles by UUID; empty once the driver failed to find one of them."""
        if not self.is_alive:
            return {}
        try:
            return {uuid: self.nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in self.uuids}
        except self.nvml.NVMLError:
            self.is_alive = False
            return {}

    def ask(self, function: str, *args: Any, where_none_is_found: Any = None) -> Any:
        """Call one NVML function; None if this pynvml, driver or GPU does not support it."""
        try:
            return getattr(self.nvml, function)(*args)
        except self.nvml.NVMLError as error:
            # pynvml raises SUCCESS where the driver says at once that there are no samples.
            found_none = {self.nvml.NVML_SUCCESS, self.nvml.NVML_ERROR_NOT_FOUND}
            return where_none_is_found if error.value in found_none else None
        except (self.nvml.NVMLLibraryMismatchError, AttributeError):
            return None  # LibraryMismatch: the driver is too old to list processes


def _larger(peak_bytes: int | None, now_bytes: int | None) -> int | None:
    return max((size for size in (peak_bytes, now_bytes) if size is not None), default=None)


def _strangers(listed: frozenset[int], pid: int) -> frozenset[int]:
    """Return those of the listed processes that do not belong to a process tree."""
    ours = frozenset(process.pid for process in tree(pid)) if listed else frozenset()
    return (listed & frozenset(psutil.pids())) - ours if ours else frozenset()
