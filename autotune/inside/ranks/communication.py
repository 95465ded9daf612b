"""How long collectives are under way in a few steps, by torch's own profiler."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

MIN_STEPS = 4
# What torch names its collectives: a CPU range from start to end with gloo, kernels with nccl.
# ProcessGroupGloo.cpp and ProcessGroupNCCL.cpp, "profilingTitle"; nccl's own kernel names.
COLLECTIVES = ("gloo:", "nccl:", "ncclDevKernel", "ncclKernel")


class CommunicationClock:
    """Records between ``start()`` and ``stop()``; waiting for other ranks is communication too."""

    def __init__(self) -> None:
        self._profile: Any = None

    def start(self) -> None:
        """Begin to record, unless the program records by itself."""
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]  # noqa: SLF001
            return
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        logging.getLogger("torch.profiler").setLevel(logging.ERROR)
        self._profile = profile(activities=activities)
        self._profile.start()

    def stop(self, steps: int) -> float | None:
        """Return the seconds of a step in which some collective was under way.

        The first step is left out: ranks begin to record one after the other. None where nothing
        was recorded.
        """
        if self._profile is None or steps < MIN_STEPS:
            return None
        recorded, self._profile = self._profile, None
        recorded.stop()
        # as recorded: torch's own tree of events takes seconds for some ten thousand operators
        ranges = sorted(
            (event.start_ns(), event.start_ns() + event.duration_ns())
            for event in recorded.profiler.kineto_results.events()
            if event.name().startswith(COLLECTIVES)
        )
        return under_way_s(ranges[len(ranges) // steps :]) / (steps - 1)


def under_way_s(ranges_ns: list[tuple[int, int]]) -> float:
    """Return the seconds that ranges of nanoseconds cover together, overlaps counted once."""
    covered, until = 0, 0
    for start, end in sorted(ranges_ns):
        covered += max(0, end - max(start, until))
        until = max(until, end)
    return covered / 1e9
