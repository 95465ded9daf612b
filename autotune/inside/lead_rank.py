"""The first rank of a rig: it carries out the parent's commands between the program's steps."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter, time

import torch

from autotune.inside.compiled import frames_compiled
from autotune.inside.data.feed import Feed
from autotune.inside.examining.examiner import Examiner
from autotune.inside.ranks.group import ALONE, Group
from autotune.inside.ranks.meetings import Meetings
from autotune.inside.ranks.rank_sync import RankCommand, Report, gpus_of
from autotune.inside.reporter import SIGN_OF_LIFE_S, Reporter
from autotune.inside.step_counts import Step
from autotune.inside.step_profiler import StepProfiler
from autotune.inside.step_tracker import StepTracker
from autotune.inside.turns import Hands, Turns, of_ranks
from autotune.inside.turns.batchprobe import BatchProbe, BatchProbes
from autotune.inside.turns.question import Question, Task
from autotune.inside.turns.readings import Readings
from autotune.machine.probes.torch_memory import torch_gpus
from autotune.measurement.examination import Examination
from autotune.measurement.step_breakdown import StepBreakdown
from autotune.measurement.turn import Taken
from autotune.rig.link import Link
from autotune.rig.wire import (
    Close,
    Ended,
    Examine,
    Examined,
    ProfileStep,
    Start,
    StepProfiled,
    TakeTurns,
    ToRig,
)


class LeadRank(StepTracker):
    """Carries out the parent's commands; of several ranks the first, which directs the others.

    ``rank_process`` creates one in the rig's first process, or in a child process that trains
    instead. Its hooks run in the program's main thread; at step boundaries it may wait there for
    the parent's next command.

    Args:
        link: To the parent.
        commands: What the parent sends, read from the link by another thread.
        start: The program, and the config it starts under.
        started: When the process began to run the program, by ``perf_counter``.
        quit_process: Ends the process at once.
        group: The processes that train together.
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
        super().__init__(start.applied, group, start.program.mode.epochs)
        self._commands = commands
        self._allowed_cores = start.allowed_cores
        self._quit = quit_process
        self._readings = Readings()
        self._meetings = Meetings(group, self._readings.count_in)
        self._probes = BatchProbes(self.seams.forward, self.seams.hubs.steps)
        self._reporter = Reporter(link, started, self, quit_process)
        self._question = Question(self._reporter)

    def disturbed(self) -> None:
        """Leave the present step out, and send a sign of life if none was sent lately."""
        if self._question.task is not None:
            self._question.task.disturb()
        self._reporter.tell_of_life()

    def paused(self) -> None:
        """Stop the clocks at the end of an epoch."""
        if self.forks.is_child:
            return
        with self._reporter.lock:
            self._meetings.pause()
            self._reporter.absence.begin(self.steps)

    def resumed(self, begin_s: float) -> None:
        """Restart the clocks with the next epoch.

        Args:
            begin_s: Seconds that the new pass over the loader took to begin. They belong to the
                epoch's first step, because the program has to wait for them in each epoch.
        """
        if self.forks.is_child:
            return
        with self._reporter.lock:
            self._meetings.go_on()
            if self._question.task is not None:
                self._question.task.resume(begin_s)
            self._reporter.absence.end()

    def program_ended(self, *, has_failed: bool = False) -> None:
        """Answer an open question with what was measured before the program ended.

        The results of a program that fails are discarded: the failure, which is reported next, is
        then the answer. Otherwise the parent could take the failure for the answer to its next
        question, which may be about another config.
        """
        with self._reporter.lock:
            task = self._question.task
            if not self.steps and self.forks.trainer is not None:
                self._reporter.refuse_forks()
            elif not has_failed and self._meetings.taken is not None:
                self._question.answer_turns(self._meetings.taken)
            elif not has_failed and task is not None:
                self._begin(None)
                task.close()
                self._answer_with(task)

    def step_made(self) -> None:
        """Count a step; report it while the program starts."""
        super().step_made()
        reporter = self._reporter
        if not reporter.is_ready:
            reporter.step_made()
        elif reporter.absence.since is not None and reporter.absence.is_another_stage(
            self.steps, self.training_pass.steps
        ):
            self._come_to_an_end()

    def _come_to_an_end(self) -> None:
        """End the rig as if the program had ended: it now trains what the search does not tune."""
        self.program_ended()
        self._reporter.send(Ended(self.steps, "", "", 0, at_s=time()))
        self._quit()

    def observed(self) -> None:
        """Send the profile of the first steps to the parent, then wait for its first command."""
        device = self.observer.device()
        self._readings.trains_on(device)
        profile = self.observer.profile(self.config_reads)
        self._reporter.ready(profile, gpus_of(self._meetings.gather(gpus=torch_gpus(device))))
        self._obey()

    def stand_aside(self) -> None:
        """Let the program train as it is: a child process is measured instead."""
        super().stand_aside()
        self._reporter.end_start()

    def take_ranks(self, group: Group) -> None:
        """Lead the ranks that the program itself starts, before it trains."""
        super().take_ranks(group)
        self._meetings = Meetings(group, self._readings.count_in)

    def _forked(self) -> None:
        super()._forked()
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
            self._counts.clock = task.clock
            if task.is_done:
                self._end(task)
        elif self._probes.present is not None:
            reporter.tell_of_life()
            if self._probes.present.step(self.loss):
                self._end_phase(self._probes.present)
        elif meetings.is_recorded:
            self._conclude()

    def _begin(self, task: Task | None) -> None:
        self._question.task = task
        self._counts.clock = None if task is None else task.clock

    def _end(self, task: Task) -> None:
        with self._reporter.lock:
            self._begin(None)
        if isinstance(task, Turns):
            self.seams.rates.hold(held=False)
            if self._meetings.has_others:
                self._end_together(task)
                return
        if not self._question.is_answered:
            self._answer_with(task)
        self._obey()

    def _answer_with(self, task: Task) -> None:
        if not isinstance(task, Turns):
            self._question.answer(task)
            return
        with self._reporter.lock:
            self._question.answer_turns(self._taken_by(task))

    def _end_together(self, task: Turns) -> None:
        """Answer for all ranks; if the parent wants to know, first record how they spend time."""
        reports = self._meetings.gather(turns=task.told())
        taken, asked = self._taken_by(task, reports), self._question.asked
        if asked is not None and asked.with_loads and taken.turns:
            self._meetings.record(taken, reports)
            return
        self._question.answer_turns(taken)
        self._obey()

    def _conclude(self) -> None:
        taken = self._meetings.taken
        assert taken is not None
        self._question.answer_turns(replace(taken, ranks=self._meetings.loads()))
        self._obey()

    def _taken_by(self, task: Turns, reports: Sequence[Report] = ()) -> Taken:
        if self._meetings.has_others:  # what one rank saw alone says nothing of the group
            turns = of_ranks([report.turns for report in reports]) if reports else ()
        else:
            turns = task.told()
        now, samples = self.training_pass, None
        if now.feed is not None and self.observer.loaders:
            samples = now.samples_between_starts or now.feed.samples_per_epoch
        samples = samples and round(samples * self._meetings.samples_share)
        return self._readings.taken(turns, self.steps, samples, self._probes.effect)

    def _obey(self) -> None:
        """Wait for the parent's next command and carry it out.

        The program stands still meanwhile, in its main thread.
        """
        question = self._question
        question.close()
        match self._commands.get():
            case TakeTurns(configs, _, number) as asked:
                question.open(number, asked)
                if self._meetings.has_others or not self._probes.begin(configs, self.applied):
                    self._begin_turns(asked)
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
        return StepProfiler(
            stage_s,
            self._sync,
            self.seams,
            self._feed_of_this_thread,
            counts_flops=frames_compiled() == 0,
        )

    def _examiner(self) -> Examiner:
        return Examiner(
            self.observer.device(),
            self._feed_of_this_thread,
            self._allowed_cores,
            counts=frames_compiled() == 0,
        )

    def _begin_turns(self, asked: TakeTurns) -> None:
        """Begin with a schedule; learning rates stay as the program sets them meanwhile."""
        self._meetings.announce(RankCommand(turns=asked))
        self.loss = None  # one from before must not count for these configs
        self._readings.begin(resets_memory=len(asked.configs) == 1)
        hands = Hands(self._switch, lambda: self.loss, self._readings.activity)
        self._begin(self.turns(asked, hands))

    def _feed_of_this_thread(self) -> Feed | None:
        """Return the feed of the only training loader; None if another thread reads it."""
        is_alone = len(self.observer.loaders or ()) == 1 and not self.observer.loader_thread
        return self.training_pass.feed if is_alone else None

    def _end_phase(self, probe: BatchProbe) -> None:
        """Switch to the new batch size after the probe's first phase; begin after its second."""
        asked = self._question.asked
        assert asked is not None, "a probe comes before what was asked for"
        if not probe.has_turned:
            self.seams.rates.hold(held=True)
            size = probe.after
            self._switch(next(a for a in asked.configs if a.config["batch_size"] == size))
            probe.turn()
            return
        self.steering.set_sums(sums=bool(self._probes.end().sums))
        self._begin_turns(asked)

    def _sync(self) -> None:
        if self.observer.device() != "cpu":
            torch.accelerator.synchronize()
