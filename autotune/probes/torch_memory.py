"""What torch's caching allocator reports; runs inside the program."""

from __future__ import annotations

from dataclasses import replace

from autotune.measurement import Memory
from autotune.probes.base import Probe


class TorchMemory(Probe):
    """Peak allocated and reserved bytes over all CUDA devices; None on others."""

    def __init__(self, device: str) -> None:
        self._is_cuda = device == "cuda"

    def reset(self) -> None:
        """Set torch's own peaks back, and give back what an earlier config left in the cache."""
        if self._is_cuda:
            import torch

            torch.cuda.empty_cache()
            for index in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(index)

    def read(self, memory: Memory) -> Memory:
        """Fill in the allocator's peaks."""
        if not self._is_cuda:
            return memory
        import torch

        devices = range(torch.cuda.device_count())
        return replace(
            memory,
            device_allocated_bytes=sum(torch.cuda.max_memory_allocated(i) for i in devices),
            device_reserved_bytes=sum(torch.cuda.max_memory_reserved(i) for i in devices),
        )
