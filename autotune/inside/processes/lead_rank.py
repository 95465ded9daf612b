"""The first rank of a rig: it carries out the parent's commands between the program's steps."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter, time

from autotune.inside.data.feed import Feed
from autotune.inside.examining.examiner import Examiner
from autotune.inside.processes.meetings import Meetings, RankCommand, Report, gpus_of
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
    FromRig,
    Link,
    LinkClosed,
    ProfileStep,
    Start,
    StepProfiled,
    TakeTurns,
    TookTurns,
    ToRig,
)

# Less than the parent waits for a sign of life
MOST_EXAMINED_S = 75.0
Task = StepProfiler | Examiner | Turns


class LeadRank(Rank):
    """Carries out the parent's commands; of several ranks the first, which directs the others."""

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
        self._meetings = Meetings(group, self._readings.host_load.count_in)
        self._reporter = Reporter(link, started, self.tracker, quit_process)
        # The question that the parent has asked last, and what answers it in steps of the program
        self._asked: TakeTurns | ProfileStep | Examine | None = None
        self._task: Task | None = None
        self._overtime: threading.Timer | None = None

    def disturbed(self) -> None:
        """Leave the present step out, and send a sign of life if none was sent lately."""
        if self._task is not None:
            self._task.disturb()
        self._reporter.tell_of_life()

    def paused(self) -> None:
        """Stop the clocks at the end of an epoch."""
        if self.tracker.forks.is_child:
            return
        with self._reporter.lock:
            self._meetings.tally.pause()
            self._reporter.away_since = self.tracker.steps, perf_counter()

    def resumed(self) -> None:
        """Restart the clocks with the next epoch."""
        if self.tracker.forks.is_child:
            return
        with self._reporter.lock:
            self._meetings.tally.go_on()
            if self._task is not None:
                self._task.resume()
            self._reporter.away_since = None

    def program_ended(self, *, has_failed: bool) -> None:
        """Answer an open question with what was measured before the program ended.

        What a failing program measured is discarded: the parent could take the failure, which is
        reported next, for the answer to its next question, about another config.
        """
        with self._reporter.lock:
            task, taken = self._task, self._meetings.taken
            if not self.tracker.steps and self.tracker.forks.trainer is not None:
                self._reporter.refuse_forks()
            elif not has_failed and taken is not None:
                self._answer(taken)
            elif not has_failed and task is not None:
                self._begin(None)
                task.close()
                self._answer(task)

    def step_made(self) -> None:
        """Report a step while the program starts; end where it trains what is not tuned."""
        reporter, steps = self._reporter, self.tracker.steps
        if not reporter.start_is_over.is_set():
            reporter.step_made()
        elif reporter.away_since is not None and reporter.is_another_stage():
            self.program_ended(has_failed=False)  # as if it had
            reporter.link.send(Ended(steps, "", "", 0, at_s=time()))
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
        self._reporter.start_is_over.set()

    def leads(self, group: Group) -> None:
        """Lead the ranks that the program itself starts, before it trains."""
        self._meetings = Meetings(group, self._readings.host_load.count_in)

    def forked(self) -> None:
        """Close this copy of the connection, which would keep it open after the rig."""
        self._reporter.link.close()

    def on_step_end(self, step: Step) -> None:
        """Continue with the parent's present command at the boundary after a step."""
        reporter, meetings, task = self._reporter, self._meetings, self._task
        reporter.away_since = None
        if meetings.has_others:
            meetings.add(step)
        if task is not None:
            if perf_counter() - reporter.sent > SIGN_OF_LIFE_S:
                reporter.tell_of_life()
            task.step(*step)
            self.tracker.counts.clock = task.clock
            if task.is_done:
                self._end(task)
        elif meetings.taken is not None and meetings.steps_left <= 0:
            self._answer(meetings.with_loads(meetings.taken))
            self._obey()

    def _begin(self, task: Task | None) -> None:
        self._task = task
        if self._overtime is not None:
            self._overtime.cancel()
        self.tracker.counts.clock = None if task is None else task.clock

    def _end(self, task: Task) -> None:
        with self._reporter.lock:
            self._begin(None)
        if isinstance(task, Turns):
            self.tracker.seams.steps.rates.is_held = False
        if isinstance(task, Turns) and self._meetings.has_others:
            reports = self._meetings.gather(turns=task.told())
            taken, asked = self._taken_by(task, reports), self._asked
            if isinstance(asked, TakeTurns) and asked.with_loads and taken.turns:
                self._meetings.record(taken, reports)  # and answer when each rank has recorded
                return
            self._answer(taken)
        else:
            self._answer(task)
        self._obey()

    def _answer(self, found: Task | Taken) -> None:
        assert self._asked is not None, "there is no answer without a question"
        number = self._asked.number
        answer: FromRig
        match found:
            case StepProfiler():
                answer = StepProfiled(found.breakdown, number)
            case Examiner():
                answer = Examined(found.found, number)
            case Turns():
                answer = TookTurns(self._taken_by(found), number)
            case Taken():
                answer = TookTurns(found, number)
        with self._reporter.lock:
            self._reporter.link.send(answer)

    def _answer_late(self, task: Examiner) -> None:
        """Answer an examination with what was seen so far; runs in a timer thread.

        The program is then within an item that never comes, or a step that takes very long. What
        it answers afterwards, nobody waits for.
        """
        with self._reporter.lock, suppress(LinkClosed):
            if task is self._task:
                self._answer(task)

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
        """Carry out the parent's next command; the program's main thread waits for it."""
        first, tracker = self.tracker.first, self.tracker
        has_one_feed = len(first.loaders or ()) == 1 and not first.loader_thread
        is_eager = frames_compiled() == 0

        def feed() -> Feed | None:
            return tracker.epoch.feed if has_one_feed else None

        match self._commands.get():
            case TakeTurns(configs) as asked:
                self._asked = asked
                self._meetings.announce(RankCommand(turns=asked))
                tracker.loss = None  # one from before must not count for these configs
                tracker.steering.spare.prepare()
                self._readings.begin(configs)
                hands = Hands(tracker.switch, lambda: tracker.loss, self._readings.activity)
                self._begin(tracker.begin_turns(asked, hands))
            case ProfileStep(_, number) if self._meetings.has_others:
                # several ranks are diagnosed by their loads, see RankLoad
                self._reporter.link.send(StepProfiled(StepBreakdown(), number))
                self._obey()
            case ProfileStep(stage_s) as asked:
                self._asked = asked
                edges, device = tracker.edges(), tracker.device
                profiler = StepProfiler(
                    stage_s, device, edges, tracker.seams, feed, is_eager=is_eager
                )
                self._begin(profiler)
            case Examine(number) if self._meetings.has_others:  # see RankLoad, too
                self._reporter.link.send(Examined(Examination(), number))
                self._obey()
            case Examine() as asked:
                self._asked = asked
                examiner = Examiner(feed, self._allowed_cores)
                self._begin(examiner)
                self._overtime = threading.Timer(MOST_EXAMINED_S, self._answer_late, (examiner,))
                self._overtime.daemon = True
                self._overtime.start()
            case Close():
                self._meetings.announce(RankCommand(ends=True))
                self._quit()
            case other:
                raise AssertionError(f"unexpected command {other!r}")
