"""What the NVIDIA driver reports, by NVML (pynvml)."""

from __future__ import annotations

import importlib
from dataclasses import replace
from types import ModuleType
from typing import Any

from autotune.measurement import Memory
from autotune.probes.base import Probe


class NvmlMemory(Probe):
    """Peak over samples of the memory in use on the visible GPUs, by all processes.

    Args:
        uuids: The GPUs to read; none makes a probe that reads nothing.
        nvml: The module that talks to the driver; tests pass recorded readings.
    """

    def __init__(self, uuids: tuple[str, ...], nvml: ModuleType | None = None) -> None:
        self._uuids = uuids
        self._peak_bytes: int | None = None
        self._nvml: Any = nvml or importlib.import_module("pynvml")
        self._alive = bool(uuids) and self._init()

    def reset(self) -> None:
        """Forget the peak."""
        self._peak_bytes = None

    def sample(self) -> None:
        """Sum up the GPUs once; a driver that stops answering ends the probe, not the search."""
        if not self._alive:
            return
        try:
            used = sum(self._used_bytes(uuid) for uuid in self._uuids)
        except self._nvml.NVMLError:
            self._alive = False
            return
        self._peak_bytes = max(used, self._peak_bytes or 0)

    def read(self, memory: Memory) -> Memory:
        """Fill in the peak."""
        return replace(memory, device_used_bytes=self._peak_bytes)

    def _init(self) -> bool:
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError:
            return False
        return True

    def _used_bytes(self, uuid: str) -> int:
        handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        return int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used)
