"""Measure how long a step spends in collectives, with torch's own profiler.

Ranks record a few steps after turns have been taken, so that recording does not slow the
measured steps.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

MIN_STEPS = 4
# How torch names collectives: gloo records a CPU range from start to end, nccl records kernels.
# Source: "profilingTitle" in ProcessGroupGloo.cpp and ProcessGroupNCCL.cpp; nccl's kernel names.
COLLECTIVES = ("gloo:", "nccl:", "ncclDevKernel", "ncclKernel")


class CommunicationClock:
    """Records collectives between ``start()`` and ``stop()``.

    ``LeadRank`` and ``FollowerRank`` each hold one and call it between steps, on the thread that
    trains. Time in which a collective waits for slower ranks counts as communication too.
    """

    def __init__(self) -> None:
        self._profile: Any = None

    def start(self) -> None:
        """Begin to record; do nothing while the program runs torch's profiler itself.

        Torch allows one profiler at a time in a process.
        """
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]  # noqa: SLF001
            return
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        logging.getLogger("torch.profiler").setLevel(logging.ERROR)
        self._profile = profile(activities=activities)
        self._profile.start()

    def stop(self, steps: int) -> float | None:
        """Stop recording and return the seconds per step in which at least one collective ran.

        The first step is left out, because the ranks do not begin to record at the same moment.

        Args:
            steps: How many steps were made since ``start()``.

        Returns:
            The seconds per step; None if nothing was recorded or there were fewer than
                ``MIN_STEPS``.
        """
        if self._profile is None or steps < MIN_STEPS:
            return None
        recorded, self._profile = self._profile, None
        recorded.stop()
        # Raw events: building torch's tree of events takes seconds for some ten thousand operators.
        ranges = sorted(
            (event.start_ns(), event.start_ns() + event.duration_ns())
            for event in recorded.profiler.kineto_results.events()
            if event.name().startswith(COLLECTIVES)
        )
        # every step runs about the same number of collectives, so this skips the first step's
        return under_way_s(ranges[len(ranges) // steps :]) / (steps - 1)


def under_way_s(ranges_ns: list[tuple[int, int]]) -> float:
    """Return the seconds covered by ranges given in nanoseconds, counting overlaps once."""
    covered, until = 0, 0
    for start, end in sorted(ranges_ns):
        covered += max(0, end - max(start, until))
        until = max(until, end)
    return covered / 1e9
