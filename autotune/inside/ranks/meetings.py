"""Meetings: what the first rank agrees on with the others, and what ranks count in between."""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from autotune.inside.ranks.communication import MIN_STEPS, CommunicationClock
from autotune.inside.ranks.group import Group
from autotune.inside.ranks.rank_sync import RankCommand, RankSync, Report
from autotune.inside.step_counts import Step
from autotune.machine.hardware import Gpu
from autotune.machine.probes.host_load import queued_s
from autotune.measurement.rank_load import RankLoad
from autotune.measurement.turn import Taken, Turn, median_step_s

RECORDED_S = 0.2  # how long communication is recorded
MAX_RECORDED_STEPS = 20


class Meetings:
    """The first rank's side of all meetings, and the loads that ranks record between two of them.

    ``LeadRank`` has one and calls it between two steps, on the thread that trains. In a group of
    one nothing is sent or counted.

    Args:
        group: The processes that train together.
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

        Args:
            taken: The turns, whose answer waits for the loads.
            reports: What ranks reported of them.
        """
        self.taken, self._reports = taken, reports
        steps = math.ceil(RECORDED_S / median_step_s(taken.turns))
        self.announce(RankCommand(min(MAX_RECORDED_STEPS, max(MIN_STEPS, steps)), records=True))
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
        self._began, self._queued_before_s = perf_counter(), queued_s(self._task)
        self._paused_at: tuple[float, float] | None = None
        self._samples = self.steps = 0
        self._wait_s = 0.0

    def pause(self) -> None:
        """Stop the clock: time from here to ``go_on()`` does not count."""
        self._paused_at = perf_counter(), queued_s(self._task)

    def go_on(self) -> None:
        """Start the clock again; does nothing if it was not stopped."""
        if self._paused_at is not None:
            paused_at, queued_before_s = self._paused_at
            self._began += perf_counter() - paused_at
            self._queued_before_s += queued_s(self._task) - queued_before_s
            self._paused_at = None

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
        seconds = perf_counter() - self._began
        workers = (child.pid for child in multiprocessing.active_children() if child.pid)
        pids = (os.getpid(), *workers)
        queued = queued_s(self._task) - self._queued_before_s
        return Report(
            self._samples, self.steps, seconds, self._wait_s, communication_s, pids, queued
        )


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
