"""Meetings: what the first rank agrees on with the others, and what ranks count in between."""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from autotune.inside.processes.rank_sync import RankCommand, RankSync, Report
from autotune.inside.ranks.group import Group
from autotune.inside.step_counts import Step
from autotune.machine.hardware import Gpu
from autotune.machine.probes.host_load import queued_s
from autotune.measurement.readings import RankLoad
from autotune.measurement.turn import Taken, Turn, median_step_s

RECORDED_S = 0.2  # how long communication is recorded
MIN_RECORDED_STEPS, MAX_RECORDED_STEPS = 4, 20
# How torch names collectives: gloo records a CPU range from start to end, nccl records kernels.
# Source: "profilingTitle" in ProcessGroupGloo.cpp and ProcessGroupNCCL.cpp; nccl's kernel names.
COLLECTIVES = ("gloo:", "nccl:", "ncclDevKernel", "ncclKernel")


class Meetings:
    """The first rank's side of all meetings, and the loads that ranks record between two of them.

    ``LeadRank`` has one and calls it between two steps, on the thread that trains. In a group of
    one nothing is sent or counted.

    Args:
        count_in: Called with the ids of the other ranks, their workers and helpers.

    Attributes:
        has_others: Whether several ranks train together.
        samples_share: Factor by which this rank's samples are multiplied to get those of all ranks.
        taken: The turns whose answer waits until the ranks have recorded their loads; None while
            nothing is recorded.
    """

    def __init__(self, group: Group, count_in: Callable[[Iterable[int]], None]) -> None:
        self.has_others = group.world_size > 1
        self._helpers = group.helpers
        self._sync = RankSync(group)
        self._count_in = count_in
        self._communication = CommunicationClock()
        self._tally = Tally()
        self._steps_left = 0
        self.samples_share = 1.0
        self._reports: list[Report] = []  # of the meeting after the turns
        self.taken: Taken | None = None

    def pause(self) -> None:
        """Stop the clock at the end of an epoch."""
        if self.has_others:
            self._tally.pause()

    def go_on(self) -> None:
        """Start the clock with the next epoch."""
        if self.has_others:
            self._tally.go_on()

    def add(self, step: Step) -> None:
        """Count a step of a group of several."""
        self._tally.add(step)
        self._steps_left -= 1

    def gather(self, gpus: tuple[Gpu, ...] = (), turns: tuple[Turn, ...] = ()) -> list[Report]:
        """Return the reports of all ranks, once each has arrived; this rank's comes first."""
        return self._gather(replace(self._tally.report(), gpus=gpus, turns=turns))

    def announce(self, order: RankCommand) -> None:
        """Tell all ranks what comes next, and count anew from here on."""
        self._sync.announce(order)
        if self.has_others:
            self._steps_left, self._tally = order.steps, Tally()

    def record(self, taken: Taken, reports: list[Report]) -> None:
        """Let all ranks record for a few steps how they spend their time.

        It follows the turns, so that torch's profiler cannot slow them down.
        """
        self.taken, self._reports = taken, reports
        steps = math.ceil(RECORDED_S / median_step_s(taken.turns))
        steps = min(MAX_RECORDED_STEPS, max(MIN_RECORDED_STEPS, steps))
        self.announce(RankCommand(steps, records=True))
        self._communication.start()

    @property
    def is_recorded(self) -> bool:
        """Whether the ranks have recorded their loads for the steps that were announced."""
        return self.taken is not None and self._steps_left <= 0

    def loads(self) -> tuple[RankLoad, ...]:
        """End the recording, and return the load of each rank."""
        recorded = self._gather(self._tally.report(self._communication.stop(self._tally.steps)))
        self.taken = None
        pairs = zip(self._reports, recorded, strict=True)
        return tuple(_load(rank, *reports) for rank, reports in enumerate(pairs))

    def _gather(self, own: Report) -> list[Report]:
        reports = self._sync.gather(own)
        ranks = (pid for report in reports[1:] for pid in report.pids)
        self._count_in((*self._helpers, *ranks))
        samples = sum(report.samples for report in reports)
        self.samples_share = samples / own.samples if own.samples else float(len(reports))
        return reports


class Tally:
    """Adds up samples, steps and waiting between two synchronizations.

    ``Meetings`` and ``FollowerRank`` hold one each and call it on the thread that trains. Its clock
    starts when it is created.

    Attributes:
        steps: How many steps were added.
    """

    def __init__(self) -> None:
        self._task = Path(f"/proc/self/task/{threading.get_native_id()}")
        self._began = self._now()
        self._paused_at: tuple[float, float] | None = None
        self._samples = self.steps = 0
        self._wait_s = 0.0

    def pause(self) -> None:
        """Stop the clock: time from here to ``go_on()`` does not count."""
        self._paused_at = self._now()

    def go_on(self) -> None:
        """Start the clock again; does nothing if it was not stopped."""
        if self._paused_at is not None:
            times = zip(self._began, self._now(), self._paused_at, strict=True)
            began, queued = (began + now - paused for began, now, paused in times)
            self._began, self._paused_at = (began, queued), None

    def add(self, step: Step) -> None:
        """Add a step's samples and the time that it waited for its batches."""
        self._samples += step.samples
        self.steps += 1
        self._wait_s += step.wait_s

    def report(self, communication_s: float | None = None) -> Report:
        """Return what was counted since this tally began, with the process ids of the rank.

        Args:
            communication_s: Seconds of a step spent in collectives; None if not recorded.
        """
        now, queued_s_now = self._now()
        workers = (child.pid for child in multiprocessing.active_children() if child.pid)
        return Report(
            self._samples,
            self.steps,
            now - self._began[0],
            self._wait_s,
            communication_s,
            pids=(os.getpid(), *workers),
            queued_s=queued_s_now - self._began[1],
        )

    def _now(self) -> tuple[float, float]:
        """Return the time, and for how long the thread was ready to run without a core."""
        return perf_counter(), queued_s(self._task)


class CommunicationClock:
    """Records collectives between ``start()`` and ``stop()``, with torch's own profiler.

    ``Meetings`` and ``FollowerRank`` each hold one and call it between steps, on the thread that
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

        The first of the *steps* since ``start()`` is left out, because the ranks do not begin to
        record at the same moment. None if nothing was recorded, or too few steps.
        """
        if self._profile is None or steps < MIN_RECORDED_STEPS:
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


def _load(rank: int, measured: Report, recorded: Report) -> RankLoad:
    """Return the load of a rank: a measured step, split as the recorded ones, which are slower."""
    step_s = measured.seconds / measured.steps
    share = step_s * recorded.steps / recorded.seconds if recorded.steps else 0.0
    communication_s = recorded.communication_s
    return RankLoad(
        rank=rank,
        step_s=step_s,
        wait_s=measured.wait_s / measured.steps,
        communication_s=None if communication_s is None else share * communication_s,
        queued_s=share * recorded.queued_s / max(1, recorded.steps),
    )
