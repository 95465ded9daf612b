"""Edges: moments on the timeline of the device that computes, read only later.

On a GPU, waiting for the device at each edge would keep the program from running ahead of it, and
copies and loading from overlapping with its work. So an edge is a CUDA event on the stream that
trains, and times are read once the schedule is over. On a CPU an edge is a reading of the clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Any, Protocol

import torch


class Edges(Protocol):
    """Marks moments and tells the seconds between them; a mark is read by its own edges only."""

    def mark(self) -> Any:
        """Return the moment at which all work that was given out until now is done."""
        ...

    def settle(self) -> None:
        """Wait until all marked moments have passed."""
        ...

    def seconds_between(self, begin: Any, end: Any) -> float:
        """Return the seconds from one moment to a later one; call ``settle()`` before."""
        ...


class HostEdges:
    """Edges of a program that computes on the CPU."""

    def mark(self) -> float:
        """Return the time by ``perf_counter``."""
        return perf_counter()

    def settle(self) -> None:
        """Do nothing: what was marked has passed."""

    def seconds_between(self, begin: float, end: float) -> float:
        """Return the difference."""
        return end - begin


class CudaEdges:
    """Edges of a program that computes on one or more GPUs.

    Between two edges lies the time of the slowest device (``torch.cuda.Event.elapsed_time``, which
    needs both events on one device).

    Args:
        devices: Indices of the devices that hold the model's parameters.
    """

    def __init__(self, devices: Sequence[int]) -> None:
        self._devices = tuple(devices)

    def mark(self) -> tuple[torch.cuda.Event, ...]:
        """Record an event on each device's present stream."""
        events = []
        for device in self._devices:
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(device))
            events.append(event)
        return tuple(events)

    def settle(self) -> None:
        """Wait for each device."""
        for device in self._devices:
            torch.cuda.synchronize(device)

    def seconds_between(
        self, begin: tuple[torch.cuda.Event, ...], end: tuple[torch.cuda.Event, ...]
    ) -> float:
        """Return the time of the slowest device."""
        pairs = zip(begin, end, strict=True)
        return float(max(a.elapsed_time(b) for a, b in pairs)) / 1000


def edges_of(devices: Iterable[torch.device]) -> Edges:
    """Return the edges for a program whose parameters are on these devices."""
    gpus = sorted({device.index or 0 for device in devices if device.type == "cuda"})
    return CudaEdges(gpus) if gpus else HostEdges()
