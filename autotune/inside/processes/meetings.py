"""Meetings: all ranks of a rig do the same thing before the same step.

All ranks count the ends of their steps. At a step that they agreed on before, each rank reports to
the first, which alone talks to the parent. The first rank then announces what comes next and after
how many steps they synchronize again. In between, ranks wait for each other only in the program's
own communication.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from pydantic import TypeAdapter
from torch.profiler import ProfilerActivity, profile

from autotune.inside.ranks.group import Group
from autotune.inside.step_counts import Step
from autotune.machine.hardware import Gpu
from autotune.machine.probes.host_load import queued_s
from autotune.measurement.readings import RankLoad
from autotune.measurement.turn import Taken, Turn, median_step_s
from autotune.rig.wire import TakeTurns

RECORDED_S = 0.2  # how long communication is recorded
MIN_RECORDED_STEPS, MAX_RECORDED_STEPS = 4, 20
# How torch names collectives: gloo records a CPU range from start to end, nccl records kernels.
# Source: "profilingTitle" in ProcessGroupGloo.cpp and ProcessGroupNCCL.cpp; nccl's kernel names.
COLLECTIVES = ("gloo:", "nccl:", "ncclDevKernel", "ncclKernel")


@dataclass(frozen=True)
class Report:
    """What one rank did since the last synchronization.

    Attributes:
        seconds: Time for these steps, without waiting for the synchronization.
        wait_s: Time in which it waited for batches.
        communication_s: Seconds of a step in which a collective ran; None if not recorded.
        pids: Ids of the process and its workers.
        queued_s: Time in which the thread that trains was ready to run and had no core.
        gpus: The GPUs that it sees; said once, when the first steps are made.
        turns: What it took of a schedule.
    """

    samples: int
    steps: int
    seconds: float
    wait_s: float
    communication_s: float | None = None
    pids: tuple[int, ...] = ()
    queued_s: float = 0.0
    gpus: tuple[Gpu, ...] = ()
    turns: tuple[Turn, ...] = ()


@dataclass(frozen=True)
class RankCommand:
    """What all ranks do next.

    Attributes:
        steps: After how many steps they synchronize again, if they take no turns.
        turns: The schedule that they carry out until then; None leaves the present config.
        records: Whether to record communication until then.
    """

    steps: int = 1
    turns: TakeTurns | None = None
    records: bool = False
    ends: bool = False


class Meetings:
    """One rank's side of all meetings, and what it counts between two of them.

    ``LeadRank`` calls ``gather`` and then ``announce``, every ``FollowerRank`` calls ``attend``,
    all at the end of the same step. Each exchange has a number, which all ranks count alike and
    which is part of its names in the store. A group of one sends nothing.

    Args:
        count_in: Called with the ids of the other ranks, their workers and helpers.

    Attributes:
        tally: What this rank has counted since the last meeting.
        steps_left: Steps until the next meeting, if no turns are taken.
        samples_share: Factor by which this rank's samples are multiplied to get those of all ranks.
        taken: The turns whose answer waits until the ranks have recorded their loads; None while
            nothing is recorded.
    """

    def __init__(
        self, group: Group, count_in: Callable[[Iterable[int]], None] = lambda _: None
    ) -> None:
        self.has_others = group.world_size > 1
        self._group = group
        self._number = 0
        self._count_in = count_in
        self._communication = CommunicationClock()
        self.tally = Tally()
        self.steps_left = 0
        self.samples_share = 1.0
        self._reports: list[Report] = []  # of the meeting after the turns
        self.taken: Taken | None = None

    def add(self, step: Step) -> None:
        """Count a step."""
        self.tally.add(step)
        self.steps_left -= 1

    def gather(self, gpus: tuple[Gpu, ...] = (), turns: tuple[Turn, ...] = ()) -> list[Report]:
        """Return the reports of all ranks, once each has arrived; this rank's comes first."""
        own = self._report(gpus, turns)
        reports = [own]
        for rank in range(1, self._group.world_size):
            key = self._key("report", rank)
            report = _json_of(Report).validate_json(self._group.store.get(key))
            assert isinstance(report, Report)
            reports.append(report)
            self._group.store.delete_key(key)
        ranks = (pid for report in reports[1:] for pid in report.pids)
        self._count_in((*self._group.helpers, *ranks))
        samples = sum(report.samples for report in reports)
        self.samples_share = samples / own.samples if own.samples else float(len(reports))
        return reports

    def announce(self, order: RankCommand) -> None:
        """Tell all ranks what comes next, and count anew from here on; for the first rank."""
        if self.has_others:
            text = _json_of(RankCommand).dump_json(order).decode()
            self._group.store.set(self._key("order", 0), text)
            self._begin(order)

    def attend(self, gpus: tuple[Gpu, ...] = (), turns: tuple[Turn, ...] = ()) -> RankCommand:
        """Report to the first rank, wait for its command and return it; for the other ranks."""
        store, report = self._group.store, self._report(gpus, turns)
        store.set(
            self._key("report", self._group.rank), _json_of(Report).dump_json(report).decode()
        )
        order = _json_of(RankCommand).validate_json(store.get(self._key("order", 0)))
        assert isinstance(order, RankCommand)
        self._begin(order)
        return order

    def record(self, taken: Taken, reports: list[Report]) -> None:
        """Let all ranks record for a few steps how they spend their time.

        It follows the turns, so that torch's profiler cannot slow them down.
        """
        self.taken, self._reports = taken, reports
        steps = math.ceil(RECORDED_S / median_step_s(taken.turns))
        steps = min(MAX_RECORDED_STEPS, max(MIN_RECORDED_STEPS, steps))
        self.announce(RankCommand(steps, records=True))

    def with_loads(self, taken: Taken) -> Taken:
        """End the recording, and return the turns with the load of each rank."""
        pairs = zip(self._reports, self.gather(), strict=True)
        self.taken = None
        return replace(taken, ranks=tuple(_load(n, *reports) for n, reports in enumerate(pairs)))

    def _report(self, gpus: tuple[Gpu, ...], turns: tuple[Turn, ...]) -> Report:
        communication_s = self._communication.stop(self.tally.steps)
        return replace(self.tally.report(communication_s), gpus=gpus, turns=turns)

    def _begin(self, order: RankCommand) -> None:
        self._number += 1
        self.steps_left = order.steps
        if order.records:
            self._communication.start()
        self.tally = Tally()

    def _key(self, kind: str, rank: int) -> str:
        return f"meeting/{self._number}/{kind}/{rank}"


@cache
def _json_of(kind: type[Report | RankCommand]) -> TypeAdapter[Report | RankCommand]:
    return TypeAdapter(kind)


class Tally:
    """Adds up samples, steps and waiting between two meetings, from when it is made."""

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
        """Return what was counted since this tally began, with the process ids of the rank."""
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

    Time in which a collective waits for slower ranks counts as communication too.
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
        if torch.cuda.is_initialized():
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


def gpus_of(reports: Iterable[Report]) -> tuple[Gpu, ...]:
    """Return the GPUs that ranks see, each once; it is in use if one of the ranks uses it."""
    found: dict[str, Gpu] = {}
    for gpu in (gpu for report in reports for gpu in report.gpus):
        if gpu.is_used or gpu.uuid not in found:
            found[gpu.uuid] = gpu
    return tuple(found.values())
