"""Memory of NVIDIA GPUs and what disturbs them, as the driver reports it through NVML (pynvml).

Covered: memory in use by all processes and by the rig's own; clocks and the reasons for lowered
clocks, temperature, utilization, other processes and energy of each GPU, including MIG slices.
Another process disturbs by the time that its work is on the SMs. That it is on the GPU says little:
a display server always is, and a notebook may keep memory for days without computing.
In a container, the driver may report ids of another pid namespace. So nobody counts as foreign
until a process of the rig was in the same list, and without one the rig's memory is unknown.
"""

from __future__ import annotations

import importlib
import os
import weakref
from contextlib import suppress
from dataclasses import replace
from time import time
from types import ModuleType
from typing import Any

from autotune.machine.process_tree import is_below
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
    """Peak memory in use on the fullest of the visible GPUs: in total, and by the rig."""

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
        """Read all GPUs once. Which is the fullest is unknown if one does not report its memory."""
        used = self.used_bytes()
        most = max(used.values()) if used and len(used) == len(self._driver.uuids) else None
        self._used_peak_bytes = _larger(self._used_peak_bytes, most)
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
        """Return the bytes that the rig's processes use now of the GPU of which they use most.

        None unless the driver reports the memory of every one of them.
        """
        lists = [
            self._driver.ask("nvmlDeviceGetComputeRunningProcesses", handle)
            for handle in self._driver.handles().values()
        ]
        if self._pid is None or not any(lists) or any(listed is None for listed in lists):
            return None
        # An id without a match here is another user's, or the rig's in another pid namespace; in
        # the second case all sums are 0, which is reported as unknown.
        sizes = [[p.usedGpuMemory for p in gpu if is_below(p.pid, self._pid)] for gpu in lists]
        is_known = all(size is not None for gpu in sizes for size in gpu)
        return max(map(sum, sizes)) or None if is_known else None


class GpuWatch:
    """Readings of what could disturb turns, one per GPU and sample.

    A field that a GPU does not report stays None; a MIG slice reports few of them. Without GPUs, or
    if the driver does not answer, there are no readings. The process tree below *pid* counts as
    ours; None stands for this process, and for nothing of ours being on the GPUs.
    """

    def __init__(
        self, uuids: tuple[str, ...], pid: int | None, nvml: ModuleType | None = None
    ) -> None:
        self._pid = os.getpid() if pid is None else pid
        self._knows_ids = pid is None  # whether the driver has named a process of ours
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
        users = {uuid: self._foreign(self._shares(handle)) for uuid, handle in handles.items()}
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
                foreign_processes=tuple(sorted(users[uuid])) if self._knows_ids else (),
            )
            self._readings.append(reading)

    def strangers(self) -> dict[str, dict[int, int | None]]:
        """Return who else is on each GPU to compute, idle or not; a process that also draws is not.

        Returns:
            By UUID and process id the memory that it holds; None if the driver does not say.
        """
        listed = {u: self._computing(handle) for u, handle in self._driver.handles().items()}
        return {
            uuid: {pid: sizes[pid] for pid in sorted(sizes) if is_below(pid, self._pid) is False}
            for uuid, sizes in listed.items()
        }

    def _foreign(self, shares: dict[int, float]) -> frozenset[int]:
        """Return who takes enough of a GPU's time and is not ours; note whether ours are listed."""
        ours = {pid: is_below(pid, self._pid) for pid in shares}
        self._knows_ids |= any(ours.values())
        return frozenset(p for p, s in shares.items() if s >= FOREIGN_SHARE and ours[p] is False)

    def _shares(self, handle: Any) -> dict[int, float]:
        """Return the share of a GPU's time that each process takes, ours included, by its id.

        MIG slices, GPUs before Maxwell and WSL do not report who uses the SMs. There, each process
        that is on the GPU to compute counts as taking all of it.
        """
        since_us = int((time() - SM_S) * 1e6)
        samples = self._driver.ask(
            "nvmlDeviceGetProcessUtilization", handle, since_us, where_none_is_found=()
        )
        if samples is None:
            return dict.fromkeys(self._computing(handle), 1.0)
        return {s.pid: s.smUtil / 100 for s in sorted(samples, key=lambda s: s.timeStamp)}

    def _computing(self, handle: Any) -> dict[int, int | None]:
        """Return the memory of each process that computes on a GPU and does not draw, by its id."""
        compute = self._driver.ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()
        graphics = self._driver.ask("nvmlDeviceGetGraphicsRunningProcesses", handle) or ()
        drawing = {process.pid for process in graphics}
        return {p.pid: p.usedGpuMemory for p in compute if p.pid not in drawing}


class _Driver:
    """NVML together with the GPUs that one reader queries.

    NVML is left with the last of its readers: while it is in use, a laptop's GPU cannot sleep.
    """

    def __init__(self, uuids: tuple[str, ...], nvml: ModuleType | None) -> None:
        self.uuids = uuids
        self.nvml: Any = nvml or importlib.import_module("pynvml")
        self.is_alive = bool(uuids)
        try:
            if uuids:
                self.nvml.nvmlInit()
                weakref.finalize(self, _leave, self.nvml)
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


def _leave(nvml: Any) -> None:
    with suppress(nvml.NVMLError):
        nvml.nvmlShutdown()


def _larger(peak_bytes: int | None, now_bytes: int | None) -> int | None:
    return max((size for size in (peak_bytes, now_bytes) if size is not None), default=None)
