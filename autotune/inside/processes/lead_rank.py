"""The first rank of a rig: it carries out the parent's commands between the program's steps."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from time import perf_counter, time

import torch

from autotune.inside.data.feed import Feed
from autotune.inside.examining.examiner import Examiner
from autotune.inside.processes.meetings import Meetings
from autotune.inside.processes.rank_sync import RankCommand, Report, gpus_of
from autotune.inside.processes.reporter import SIGN_OF_LIFE_S, Reporter
from autotune.inside.ranks.group import ALONE, Group
from autotune.inside.readings import Readings, frames_compiled
from autotune.inside.step_counts import Step
from autotune.inside.step_profiler import StepProfiler
from autotune.inside.step_tracker import Rank, StepTracker
from autotune.inside.turns import Hands, Turns, of_ranks
from autotune.machine.probes.torch_memory import torch_gpus
from autotune.measurement.examination import Examination, StepBreakdown
from autotune.measurement.turn import Taken
from autotune.rig.wire import (
    Close,
    Ended,
    Examine,
    Examined,
    Link,
    LinkClosed,
    ProfileStep,
    Start,
    StepProfiled,
    TakeTurns,
    TookTurns,
    ToRig,
)

MOST_EXAMINED_S = 75.0

Task = StepProfiler | Examiner | Turns


class Question:
    """The question that the parent has asked last.

    ``LeadRank`` asks the next one when this one is answered. A timer thread answers an examination
    whose time is up while the program is within a long step; the reporter's lock keeps it from
    answering twice.

    Attributes:
        task: Answers it in steps of the program; None before it begins and when it is done.
        asked: The turns that it asks for; None if it asks for something else.
        is_answered: Whether it was answered; set first by the thread that will send the answer.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._number = 0
        self._overtime = threading.Timer(0.0, lambda: None)
        self.task: Task | None = None
        self.asked: TakeTurns | None = None
        self.is_answered = False

    def open(self, number: int, asked: TakeTurns | None = None) -> None:
        """Take the parent's next question by its number."""
        self._number, self.asked, self.is_answered = number, asked, False

    def limit(self, task: Examiner) -> None:
        """Answer within ``MOST_EXAMINED_S``, whatever an examination has found by then."""
        self._overtime = threading.Timer(MOST_EXAMINED_S, self.answer_late, (task,))
        self._overtime.daemon = True
        self._overtime.start()

    def close(self) -> None:
        """End the limit of time."""
        self._overtime.cancel()

    def answer(self, found: StepProfiler | Examiner | Taken) -> None:
        """Answer with what a task has found, or with turns."""
        with self._reporter.lock:
            self._reporter.send(
                TookTurns(found, self._number)
                if isinstance(found, Taken)
                else found.answer(self._number)
            )

    def answer_late(self, task: Examiner) -> None:
        """Answer with what was seen so far; runs in a timer thread.

        The program is then within a step that takes very long, or within an item that never comes.
        """
        with self._reporter.lock:
            if task is self.task and not self.is_answered:
                self.is_answered = True
                with suppress(LinkClosed):
                    self._reporter.send(task.answer(self._number))


class LeadRank(Rank):
    """Carries out the parent's commands; of several ranks the first, which directs the others.

    ``rank_process`` creates one in the rig's first process, or in a child process that trains
    instead.

    Attributes:
        tracker: The listener of the seams, which finds the steps.
    """

    def __init__(
        self,
        link: Link,
        commands: queue.SimpleQueue[ToRig],
        start: Start,
        started: float,
        quit_process: Callable[[], None],
        group: Group = ALONE,
    ) -> None:
        self.tracker = StepTracker(start.applied, group, self, start.program.mode.epochs)
        self._commands = commands
        self._allowed_cores = start.allowed_cores
        self._quit = quit_process
        self._readings = Readings()
        self._meetings = Meetings(group, self._readings.count_in)
        self._reporter = Reporter(link, started, self.tracker, quit_process)
        self._question = Question(self._reporter)

    def disturbed(self) -> None:
        """Leave the present step out, and send a sign of life if none was sent lately."""
        if self._question.task is not None:
            self._question.task.disturb()
        self._reporter.tell_of_life()

    def paused(self) -> None:
        """Stop the clocks at the end of an epoch."""
        if self.tracker.forks.is_child:
            return
        with self._reporter.lock:
            self._meetings.pause()
            self._reporter.absence.begin(self.tracker.steps)

    def resumed(self, begin_s: float) -> None:
        """Restart the clocks with the next epoch.

        Args:
            begin_s: Seconds that the new pass over the loader took to begin. They belong to the
                epoch's first step, because the program has to wait for them in each epoch.
        """
        if self.tracker.forks.is_child:
            return
        with self._reporter.lock:
            self._meetings.go_on()
            if self._question.task is not None:
                self._question.task.resume(begin_s)
            self._reporter.absence.end()

    def program_ended(self, *, has_failed: bool) -> None:
        """Answer an open question with what was measured before the program ended.

        The results of a program that fails are discarded: the failure, which is reported next, is
        then the answer. Otherwise the parent could take the failure for the answer to its next
        question, which may be about another config.
        """
        with self._reporter.lock:
            task = self._question.task
            if not self.tracker.steps and self.tracker.forks.trainer is not None:
                self._reporter.refuse_forks()
            elif not has_failed and self._meetings.taken is not None:
                self._question.answer(self._meetings.taken)
            elif not has_failed and task is not None:
                self._begin(None)
                task.close()
                self._question.answer(self._found_by(task))

    def step_made(self) -> None:
        """Report a step while the program starts; end where it trains what is not tuned."""
        reporter, steps = self._reporter, self.tracker.steps
        if not reporter.is_ready:
            reporter.step_made()
        elif reporter.absence.since is not None and reporter.absence.is_another_stage(
            steps, self.tracker.epoch.steps
        ):
            self.program_ended(has_failed=False)  # as if it had
            reporter.send(Ended(steps, "", "", 0, at_s=time()))
            self._quit()

    def observed(self) -> None:
        """Send the profile of the first steps to the parent, then wait for its first command."""
        device = self.tracker.device
        self._readings.trains_on(device)
        gpus = gpus_of(self._meetings.gather(gpus=torch_gpus(device)))
        self._reporter.ready(self.tracker.profile(), gpus)
        self._obey()

    def left_alone(self) -> None:
        """Let the program train as it is: a child process is measured instead."""
        self._reporter.end_start()

    def leads(self, group: Group) -> None:
        """Lead the ranks that the program itself starts, before it trains."""
        self._meetings = Meetings(group, self._readings.count_in)

    def forked(self) -> None:
        """Leave the connection to the parent to the process that was forked."""
        self._reporter.close()

    def on_step_end(self, step: Step) -> None:
        """Continue with the parent's present command at the boundary after a step."""
        reporter, meetings, task = self._reporter, self._meetings, self._question.task
        if reporter.absence.since is not None:
            reporter.absence.end()
        if meetings.has_others:
            meetings.add(step)
        if task is not None:
            if perf_counter() - reporter.sent > SIGN_OF_LIFE_S:
                reporter.tell_of_life()
            task.step(*step)
            self.tracker.counts.clock = task.clock
            if task.is_done:
                self._end(task)
        elif meetings.is_recorded:
            taken = meetings.taken
            assert taken is not None, "ranks record after turns"
            self._question.answer(replace(taken, ranks=meetings.loads()))
            self._obey()

    def _begin(self, task: Task | None) -> None:
        self._question.task = task
        self.tracker.counts.clock = None if task is None else task.clock

    def _end(self, task: Task) -> None:
        with self._reporter.lock:
            self._begin(None)
        if isinstance(task, Turns):
            self.tracker.seams.steps.rates.is_held = False
            if self._meetings.has_others:
                self._end_together(task)
                return
        if not self._question.is_answered:
            with self._reporter.lock:
                self._question.answer(self._found_by(task))
        self._obey()

    def _end_together(self, task: Turns) -> None:
        """Answer for all ranks; if the parent wants to know, first record how they spend time."""
        reports = self._meetings.gather(turns=task.told())
        taken, asked = self._taken_by(task, reports), self._question.asked
        if asked is not None and asked.with_loads and taken.turns:
            self._meetings.record(taken, reports)
            return
        self._question.answer(taken)
        self._obey()

    def _found_by(self, task: Task) -> StepProfiler | Examiner | Taken:
        return self._taken_by(task) if isinstance(task, Turns) else task

    def _taken_by(self, task: Turns, reports: Sequence[Report] = ()) -> Taken:
        if self._meetings.has_others:  # what one rank saw alone says nothing of the group
            turns = of_ranks([report.turns for report in reports]) if reports else ()
        else:
            turns = task.told()
        epoch, samples = self.tracker.epoch, None
        if epoch.feed is not None and self.tracker.first.loaders:
            samples = epoch.samples_between_starts or epoch.feed.samples_per_epoch
        samples = samples and round(samples * self._meetings.samples_share)
        return self._readings.taken(turns, self.tracker.steps, samples)

    def _obey(self) -> None:
        """Wait for the parent's next command and carry it out.

        The program stands still meanwhile, in its main thread.
        """
        question = self._question
        question.close()
        match self._commands.get():
            case TakeTurns(configs, _, number) as asked:
                question.open(number, asked)
                self._meetings.announce(RankCommand(turns=asked))
                self.tracker.loss = None  # one from before must not count for these configs
                self._readings.begin(resets_memory=len(configs) == 1)
                hands = Hands(
                    self.tracker.switch, lambda: self.tracker.loss, self._readings.activity
                )
                self._begin(self.tracker.begin_turns(asked, hands))
            case ProfileStep(stage_s, number) if not self._meetings.has_others:
                question.open(number)
                self._begin(self._profiler(stage_s))
            case ProfileStep(_, number):  # several ranks are diagnosed by their loads, see RankLoad
                self._reporter.send(StepProfiled(StepBreakdown(), number))
                self._obey()
            case Examine(number) if not self._meetings.has_others:
                question.open(number)
                self._begin(task := self._examiner())
                question.limit(task)
            case Examine(number):  # the ranks' own loads say what there is to say
                self._reporter.send(Examined(Examination(), number))
                self._obey()
            case Close():
                self._meetings.announce(RankCommand(ends=True))
                self._quit()
            case other:
                raise AssertionError(f"unexpected command {other!r}")

    def _profiler(self, stage_s: float) -> StepProfiler:
        on_cpu = self.tracker.device == "cpu"
        return StepProfiler(
            stage_s,
            (lambda: None) if on_cpu else torch.accelerator.synchronize,
            self.tracker.seams,
            self._feed_of_this_thread,
            counts_flops=frames_compiled() == 0,
        )

    def _examiner(self) -> Examiner:
        return Examiner(
            self.tracker.device,
            self._feed_of_this_thread,
            self._allowed_cores,
            counts=frames_compiled() == 0,
        )

    def _feed_of_this_thread(self) -> Feed | None:
        first = self.tracker.first
        is_alone = len(first.loaders or ()) == 1 and not first.loader_thread
        return self.tracker.epoch.feed if is_alone else None
