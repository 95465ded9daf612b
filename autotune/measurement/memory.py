"""Memory: the peaks that were seen while a config was measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Memory:
    """Peak memory while a config was measured; None where nothing reports it.

    Attributes:
        device_allocated_bytes: torch's peak of live tensors on the device.
        device_reserved_bytes: torch's peak of memory reserved from the device.
        device_used_bytes: What all processes use on the device, according to its driver.
        device_process_bytes: What the rig's own processes use, according to the driver.
        alloc_retries: How often torch's allocator had to empty its cache to continue; a sign that
            the memory is nearly full.
        host_bytes: Host memory of the rig's process tree; shared pages count once if PSS can be
            read.
    """

    device_allocated_bytes: int | None = None
    device_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    device_process_bytes: int | None = None
    alloc_retries: int | None = None
    host_bytes: int | None = None

    @property
    def is_on_device(self) -> bool:
        """Whether torch used memory of a device."""
        return bool(self.device_reserved_bytes)

    @property
    def peak_bytes(self) -> int | None:
        """The peak on the device where one was used, else of the host; None if unknown."""
        return self.device_reserved_bytes if self.is_on_device else self.host_bytes
