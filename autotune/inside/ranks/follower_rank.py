"""FollowerRank: a rank that carries out what the first rank announces, at agreed steps."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from autotune.inside.examining.thread_sampler import queued_s
from autotune.inside.ranks.communication import CommunicationClock
from autotune.inside.ranks.group import Group
from autotune.inside.ranks.rank_sync import RankCommand, RankSync, Report
from autotune.inside.step_tracker import Step, StepTracker
from autotune.inside.turns import Hands, Turns
from autotune.machine.hardware import Gpu
from autotune.machine.probes.torch_memory import torch_gpus
from autotune.measurement.run_mode import Epochs
from autotune.measurement.turn import Turn
from autotune.program.applied_config import AppliedConfig


class FollowerRank(StepTracker):
    """Counts steps and synchronizes with the first rank.

    Every rank but the first has one, created before the program runs. The seams call it on the
    thread that trains. It applies a config only when the first rank commands it, so all ranks
    switch before the same step.

    Args:
        applied: The config that the program starts under; None starts it as written.
        group: The processes that train together.
        quit_process: Ends the process at once.
        epochs: How the program's epochs end.
    """

    def __init__(
        self,
        applied: AppliedConfig | None,
        group: Group,
        quit_process: Callable[[], None],
        epochs: Epochs = Epochs.ENDLESS,
    ) -> None:
        super().__init__(applied, group, epochs)
        self._quit = quit_process
        self._meetings = RankSync(group)
        self._communication = CommunicationClock()
        self._tally = Tally()
        self._steps_left = 0
        self._turns: Turns | None = None

    def observed(self) -> None:
        """Synchronize for the first time, when the first steps have shown what the program is.

        At every synchronization the first rank announces the step of the next one.
        """
        self._meet(torch_gpus(self.observer.device()))

    def paused(self) -> None:
        """Stop the clock at the end of an epoch.

        Evaluation and checkpoints between epochs do not count as training time.
        """
        self._tally.pause()

    def resumed(self, begin_s: float) -> None:
        """Start the clock again when the next epoch begins.

        Args:
            begin_s: Seconds that the beginning of the epoch took; only the first rank needs them.
        """
        self._tally.go_on()
        if self._turns is not None:
            self._turns.resume(begin_s)

    def on_step_end(self, step: Step) -> None:
        """Count a step, and synchronize if this is the agreed one."""
        self._tally.add(step)
        if self._turns is not None:
            self._turns.step(step.samples, step.wait_s, step.tokens)
            if self._turns.is_done:
                taken, self._turns = self._turns.told(), None
                self.seams.rates.hold(held=False)
                self._meet(turns=taken)
            return
        self._steps_left -= 1
        if self._steps_left <= 0:
            self._meet()

    def disturbed(self) -> None:
        """Leave the present step out."""
        if self._turns is not None:
            self._turns.disturb()

    def _meet(self, gpus: tuple[Gpu, ...] = (), turns: tuple[Turn, ...] = ()) -> None:
        """Report to the first rank, carry out its command and begin a new tally."""
        communication_s = self._communication.stop(self._tally.steps)
        report = replace(self._tally.report(communication_s), gpus=gpus, turns=turns)
        self._obey(self._meetings.attend(report))
        self._tally = Tally()

    def _obey(self, order: RankCommand) -> None:
        """Carry out a command: end the process, take turns, or record communication."""
        self._steps_left = order.steps
        if order.ends:
            self._quit()
        if order.turns is not None:
            self._turns = self.turns(order.turns, Hands(self._switch))
        if order.records:
            self._communication.start()


class Tally:
    """Adds up samples, steps and waiting between two synchronizations.

    ``LeadRank`` and ``FollowerRank`` hold one each and call it on the thread that trains. Its clock
    starts when it is created.
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
