"""Switches that hold for the whole process: threads and cuDNN's algorithm search."""

from __future__ import annotations

import torch


class ProcessSeam:
    """Sets process-wide switches, and sets them again after the program's own set-up code."""

    def __init__(self) -> None:
        self._num_threads: int | None = None
        self._cudnn_benchmark: bool | None = None

    def set_num_threads(self, threads: int) -> None:
        """Set torch's intra-op threads."""
        self._num_threads = threads
        torch.set_num_threads(threads)

    def set_cudnn_benchmark(self, *, enabled: bool) -> None:
        """Set cuDNN's search for the fastest algorithm."""
        self._cudnn_benchmark = enabled
        torch.backends.cudnn.benchmark = enabled

    def settle(self) -> None:
        """Set again what was asked for: the program may have set its own while it started."""
        if self._num_threads is not None:
            torch.set_num_threads(self._num_threads)
        if self._cudnn_benchmark is not None:
            torch.backends.cudnn.benchmark = self._cudnn_benchmark
