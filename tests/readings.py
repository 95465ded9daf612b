# ruff: noqa: N802 - the names are those of pynvml
"""Recorded readings: stands in for pynvml where there is no NVIDIA driver.

A module-like object, because the real one needs a driver; values and error classes are those that
nvidia-ml-py gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from autotune.hardware import Gpu


class NVMLError(Exception):
    """Any answer of the driver that is an error."""


class NVMLErrorLibraryNotFound(NVMLError):
    """libnvidia-ml.so is not installed."""


@dataclass(frozen=True)
class MemoryInfo:
    """nvmlMemory_t."""

    total: int
    used: int


class NvmlReadings(ModuleType):
    """What pynvml answers on a machine with these GPUs.

    Args:
        gpus: The GPUs in NVML's order; a handle is a GPU itself.
        used_bytes: Memory in use, per reading; the last one stays.
        library: The driver's library is installed.
        fails_at: From this function's first call on, each call raises NVMLError.
        text_as_bytes: Names are bytes, as before nvidia-ml-py 11.5.
    """

    NVMLError = NVMLError
    NVMLError_LibraryNotFound = NVMLErrorLibraryNotFound

    def __init__(
        self,
        gpus: Sequence[Gpu] = (),
        used_bytes: Sequence[int] = (0,),
        *,
        library: bool = True,
        fails_at: str = "",
        text_as_bytes: bool = False,
    ) -> None:
        super().__init__("pynvml")
        self._gpus = gpus
        self._used_bytes = list(used_bytes)
        self._library = library
        self._text_as_bytes = text_as_bytes
        self._is_running = False
        self.fails_at = fails_at

    @property
    def is_shut_down(self) -> bool:
        return not self._is_running

    def nvmlInit(self) -> None:
        if not self._library:
            raise NVMLErrorLibraryNotFound("NVML Shared Library Not Found")
        self._answer("nvmlInit")
        self._is_running = True

    def nvmlShutdown(self) -> None:
        self._is_running = False

    def nvmlDeviceGetCount(self) -> int:
        self._answer("nvmlDeviceGetCount")
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        self._answer("nvmlDeviceGetHandleByIndex")
        return self._gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:
        self._answer("nvmlDeviceGetHandleByUUID")
        found = [gpu for gpu in self._gpus if gpu.uuid == uuid]
        if not found:
            raise NVMLError("Not Found")
        return found[0]

    def nvmlDeviceGetName(self, handle: Gpu) -> str | bytes:
        return self._text(handle.name)

    def nvmlDeviceGetUUID(self, handle: Gpu) -> str | bytes:
        return self._text(handle.uuid)

    def nvmlDeviceGetCudaComputeCapability(self, handle: Gpu) -> tuple[int, int]:
        return handle.compute_capability

    def nvmlDeviceGetMemoryInfo(self, handle: Gpu) -> MemoryInfo:
        self._answer("nvmlDeviceGetMemoryInfo")
        used = self._used_bytes.pop(0) if len(self._used_bytes) > 1 else self._used_bytes[0]
        return MemoryInfo(handle.memory_bytes, used)

    def _answer(self, function: str) -> None:
        if self.fails_at == function:
            raise NVMLError("GPU is lost")

    def _text(self, text: str) -> str | bytes:
        return text.encode() if self._text_as_bytes else text
