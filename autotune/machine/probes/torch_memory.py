"""GPUs and their memory as torch reports them; used inside the program's process."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace

from autotune.machine.hardware import Gpu
from autotune.measurement.readings import Memory

# Of a memory, left free: the longest batch and an evaluation, which a few turns may not meet, must
# fit as well. torch reserves more than it allocates, so it may take half of that
SPARE_SHARE = 0.08
UNRESERVED_SHARE = SPARE_SHARE / 2


def torch_gpus(device: str) -> tuple[Gpu, ...]:
    """Return the GPUs that a program sees, in its order; none for one that trains on the CPU.

    In use are those on which torch's allocator holds memory. How full the others are is not asked,
    because that makes a context there.
    """
    if device != "cuda":
        return ()
    import torch

    count = torch.cuda.device_count()
    used = {index for index in range(count) if torch.cuda.memory_reserved(index)}
    used = used or {torch.cuda.current_device()}  # torch's caching of memory may be turned off
    return tuple(
        Gpu(
            facts.name,
            # NVML's id has a prefix, which CUDA's lacks; the name of a slice says that it is one.
            f"{'MIG' if ' MIG ' in facts.name else 'GPU'}-{facts.uuid}",
            facts.total_memory,
            (facts.major, facts.minor),
            is_used=index in used,
            usable_bytes=_usable_bytes(index) if index in used else None,
        )
        for index, facts in enumerate(map(torch.cuda.get_device_properties, range(count)))
    )


def _usable_bytes(device: int) -> int | None:
    """Return what torch's allocator holds of a device and what it could still get."""
    import torch

    with suppress(RuntimeError):
        free_bytes, _ = torch.cuda.mem_get_info(device)
        return free_bytes + torch.cuda.memory_reserved(device)
    return None


def is_device_full() -> bool:
    """Return whether torch got no memory from a GPU of this process, or one has under 1 % left.

    Libraries that get none say so in other words. After some errors no GPU answers any more.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    for index in range(torch.cuda.device_count()):
        with suppress(RuntimeError):
            seen = torch.cuda.memory_stats(index)
            if seen.get("num_ooms", 0):
                return True
            if seen.get("reserved_bytes.all.peak", 0):  # others are not this process's
                free, total = torch.cuda.mem_get_info(index)
                if 100 * free < total:
                    return True
    return False


class SpareMemory:
    """Leaves a part of each GPU free while another config than the program's own trains.

    Then a batch that leaves no room for a longer one, or for an evaluation, ends out of memory. So
    does one for which a driver would take memory of the host (Windows, WSL). The program as written
    may need all there is: what it has reserved is not asked back, and nothing limits it.

    Args:
        is_as_written: Whether the process has trained as the program is written so far.
    """

    def __init__(self, device: str, *, is_as_written: bool) -> None:
        self._is_cuda = device == "cuda"
        self._began_as_written = is_as_written
        self._is_limited = self._was_limited = False
        # Of each device, the shares that torch may reserve: as written, and under other configs
        self._shares: dict[int, tuple[float, float]] = {}

    def prepare(self) -> None:
        """Find out what to leave free; called before peaks of memory are reset for a config."""
        import torch

        if self._was_limited or not self._is_cuda:
            return
        for index in range(torch.cuda.device_count()):
            peak = torch.cuda.max_memory_reserved(index)
            if not peak:
                continue
            free, total = torch.cuda.mem_get_info(index)
            if peak > total:
                continue  # it lives in the host's memory, too
            own = min(1.0, torch.cuda.get_per_process_memory_fraction(index))
            room = free + torch.cuda.memory_reserved(index) - UNRESERVED_SHARE * total
            needed = peak if self._began_as_written else 0
            self._shares[index] = own, min(own, max(room, needed) / total)

    def switch(self, *, is_as_written: bool) -> None:
        """Leave the part free from here on, or give it back to the program as written."""
        import torch

        if is_as_written is self._is_limited:
            for index, (own, others) in self._shares.items():
                share = own if is_as_written else others
                torch.cuda.set_per_process_memory_fraction(share, index)
        self._is_limited = not is_as_written
        self._was_limited |= self._is_limited


class TorchMemory:
    """Peak allocated and reserved bytes of the fullest CUDA device; None on other devices.

    The allocator records peaks itself, so samples in between are not needed.
    """

    def __init__(self, device: str) -> None:
        self._is_cuda = device == "cuda"
        self._retries = 0

    def begin(self, *, resets: bool) -> None:
        """Count from here on; with *resets*, peaks too, and caches of earlier configs are emptied.

        Otherwise the reserved memory of a config would include that of the configs before it. The
        cache of page-locked memory never shrinks by itself, and RSS does not show it.
        """
        self._retries = self._total("num_alloc_retries")
        if self._is_cuda and resets:
            import torch

            torch.cuda.empty_cache()
            public = getattr(torch.accelerator, "empty_host_cache", None)  # since torch 2.14
            (public or torch._C._host_emptyCache)()  # noqa: SLF001
            for index in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(index)

    def bytes_taken(self) -> int:
        """Return the bytes that the allocator has taken from the devices so far.

        The warm-up lasts while this number grows. Segments are not counted, because an expandable
        one grows without a new one.
        """
        return self._total("reserved_bytes.all.allocated")

    def read(self, memory: Memory) -> Memory:
        """Return *memory* with the allocator's peaks filled in."""
        if not self._is_cuda:
            return memory
        import torch

        devices = range(torch.cuda.device_count())
        return replace(
            memory,
            device_allocated_bytes=max(torch.cuda.max_memory_allocated(i) for i in devices),
            device_reserved_bytes=max(torch.cuda.max_memory_reserved(i) for i in devices),
            alloc_retries=self._total("num_alloc_retries") - self._retries,
        )

    def _total(self, statistic: str) -> int:
        """Return a counter of ``torch.cuda.memory_stats()``, added over all devices; 0 on a CPU."""
        if not self._is_cuda:
            return 0
        import torch

        devices = range(torch.cuda.device_count())
        return sum(int(torch.cuda.memory_stats(i).get(statistic, 0)) for i in devices)
