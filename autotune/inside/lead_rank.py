"""The first rank of a rig: it carries out the parent's commands between the program's steps."""

from __future__ import annotations

import math
import os
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from time import perf_counter, sleep, time

import torch

from autotune.inside.absence import Absence
from autotune.inside.batchprobe import BatchProbe
from autotune.inside.compiled import CompileCounter, frames_compiled
from autotune.inside.data.feed import Feed
from autotune.inside.examining.examiner import Examiner
from autotune.inside.listener import BatchClock
from autotune.inside.ranks.communication import MIN_STEPS, CommunicationClock
from autotune.inside.ranks.follower_rank import Tally
from autotune.inside.ranks.forks import ForkTrainingError
from autotune.inside.ranks.group import ALONE, Group
from autotune.inside.ranks.rank_sync import RankCommand, RankSync, Report, gpus_of
from autotune.inside.standstill import doing, waits_for_processes
from autotune.inside.step_profiler import StepProfiler
from autotune.inside.step_tracker import Step, StepTracker
from autotune.inside.turns import Hands, Turns, of_ranks
from autotune.machine.probes.host_load import HostLoad
from autotune.machine.probes.torch_memory import TorchMemory, torch_gpus
from autotune.measurement.batch_effect import BatchEffect
from autotune.measurement.examination import Examination
from autotune.measurement.memory import Memory
from autotune.measurement.rank_load import RankLoad
from autotune.measurement.step_breakdown import StepBreakdown
from autotune.measurement.turn import Taken, median_step_s
from autotune.program.applied_config import AppliedConfig
from autotune.rig.link import Link, LinkClosed
from autotune.rig.wire import (
    Close,
    Ended,
    Examine,
    Examined,
    Phase,
    ProfileStep,
    Progress,
    Ready,
    Start,
    StepProfiled,
    TakeTurns,
    TookTurns,
    ToRig,
)

SIGN_OF_LIFE_S = 5.0
PROGRESS_S = 0.3  # between two messages of a program that starts
RECORDED_S = 0.2  # how long communication is recorded
MAX_RECORDED_STEPS = 20
FIRST_WORD_S = 1.0  # without a step until the first description of what the program does
LATER_WORDS = 1.5  # factor on the time between two descriptions
LAST_WORD_S = 300.0  # after this, the parent may take the silence for a hang
MOST_EXAMINED_S = 75.0
FIRST_STEPS = 8  # each is reported, so that the parent learns how long a step takes


class LeadRank(StepTracker):
    """Carries out the parent's commands; of several ranks the first, which directs the others.

    ``rank_process`` creates one in the rig's first process, or in a child process that trains
    instead. Its hooks run in the program's main thread; at step boundaries it may wait there for
    the parent's next command. Three background threads describe a slow start, watch for training in
    forked processes and report long absences. A timer thread answers an examination whose time is
    up while the program is within a long step. The lock ``_turn`` keeps them apart.

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
        self._link = link
        self._commands = commands
        self._started = started
        self._first_step_s: float | None = None
        self._quit = quit_process
        self._meetings = RankSync(group)
        self._communication = CommunicationClock()
        self._tally = Tally()
        self._steps_left = 0
        self._samples_share = 1.0
        self._task: StepProfiler | Examiner | Turns | None = None
        self._asked: TakeTurns | None = None
        self._taken: Taken | None = None  # while the ranks record how they spend their time
        self._reports: list[Report] = []
        self._probe: BatchProbe | None = None
        self._probed: BatchEffect | None = None
        self._probed_sizes: set[int] = set()  # also those that left it open what the loss does
        self._memory = TorchMemory("cpu")
        self._compiled = CompileCounter()
        self._host_load = HostLoad(os.getppid())
        self._counters = self._host_load.read()
        self._allowed_cores = start.allowed_cores
        self._sent = started
        self._turn = threading.RLock()  # guards the link against the other threads
        self._is_answered = False  # set first by the thread that will send the answer
        self._number = 0  # of the parent's last question
        self._overtime = threading.Timer(0.0, lambda: None)
        self._is_ready = threading.Event()
        self._absence = Absence()
        for work in (self._describe_start, self._watch_forks, self._tell_of_absences):
            threading.Thread(target=work, daemon=True).start()

    @property
    def clock(self) -> BatchClock | None:
        """The clock of the step breakdown; None while the parts of steps are not timed."""
        clock: BatchClock | None = None if self._task is None else self._task.clock
        return clock

    def disturbed(self) -> None:
        """Leave the present step out, and send a sign of life if none was sent lately."""
        if self._task is not None:
            self._task.disturb()
        if self._is_ready.is_set() and perf_counter() - self._sent > SIGN_OF_LIFE_S:
            self._progress(self._absence.phase)

    def paused(self) -> None:
        """Stop the clocks at the end of an epoch."""
        if self.forks.is_child:
            return
        with self._turn:
            self._tally.pause()
            self._absence.begin(self.steps)

    def resumed(self, begin_s: float) -> None:
        """Restart the clocks with the next epoch.

        Args:
            begin_s: Seconds that the new pass over the loader took to begin. They belong to the
                epoch's first step, because the program has to wait for them in each epoch.
        """
        if self.forks.is_child:
            return
        with self._turn:
            self._tally.go_on()
            if self._task is not None:
                self._task.resume(begin_s)
            self._absence.end()

    def program_ended(self, *, has_failed: bool = False) -> None:
        """Answer an open question with what was measured before the program ended.

        The results of a program that fails are discarded: the failure, which is reported next, is
        then the answer. Otherwise the parent could take the failure for the answer to its next
        question, which may be about another config.
        """
        with self._turn:
            if not self.steps and self.forks.trainer is not None:
                self._refuse_forks()
            elif not has_failed and self._taken is not None:
                self._answer(self._taken)
            elif not has_failed and self._task is not None:
                task, self._task = self._task, None
                task.close()
                self._answer_with(task)

    def step_made(self) -> None:
        """Count a step; before the first steps are observed, report progress to the parent.

        The parent cannot know how long a step takes, so without these messages a slow program would
        look like one that hangs.
        """
        super().step_made()
        if self._first_step_s is None:
            self._first_step_s = perf_counter() - self._started
        if self._is_ready.is_set():
            if self._absence.is_another_stage(self.steps, self._feed_steps):
                self._come_to_an_end()
            return
        if self.steps <= FIRST_STEPS or perf_counter() - self._sent > PROGRESS_S:
            self._tell_start()

    def _come_to_an_end(self) -> None:
        """End the rig as if the program had ended: it now trains what the search does not tune."""
        self.program_ended()
        self._link.send(Ended(self.steps, "", "", 0, at_s=time()))
        self._quit()

    def observed(self) -> None:
        """Send the profile of the first steps to the parent, then wait for its first command."""
        device = self.observer.device()
        self._memory = TorchMemory(device)
        profile = self.observer.profile(self.config_reads)
        reports = self._gather(replace(self._tally.report(), gpus=torch_gpus(device)))
        with self._turn:
            self._is_ready.set()
            ready = Ready(
                profile,
                startup_s=perf_counter() - self._started,
                downloaded_to=tuple(sorted(self.seams.downloads.places)),
                gpus=torch.cuda.device_count(),  # asks the driver, and makes no context
                first_step_s=self._first_step_s,
                devices=gpus_of(reports),
            )
            self._link.send(ready)
        self._obey()

    def stand_aside(self) -> None:
        """Let the program train as it is: a child process is measured instead."""
        super().stand_aside()
        self._is_ready.set()

    def take_ranks(self, group: Group) -> None:
        """Lead the ranks that the program itself starts, before it trains."""
        super().take_ranks(group)
        self._meetings = RankSync(group)

    def _forked(self) -> None:
        super()._forked()
        # Only this process's copy. It would keep the connection open after the rig's end.
        self._link.close()

    def _tell_start(self, what: str = "", unseen: str = "") -> None:
        with self._turn:
            if not self._is_ready.is_set():
                elapsed_s = perf_counter() - self._started
                progress = Progress("start-up", self.steps, elapsed_s, what, unseen)
                self._link.send(progress)
                self._sent = perf_counter()

    def _describe_start(self) -> None:
        """Report what the program does while it makes no step; runs in a background thread.

        The messages become rarer with time and end when their interval reaches ``LAST_WORD_S``, so
        that the parent can take the silence after that for a hang.
        """
        wait_s = FIRST_WORD_S
        with suppress(LinkClosed):
            while not self._is_ready.wait(wait_s) and wait_s < LAST_WORD_S:
                if perf_counter() - self._sent > wait_s / 2:
                    self._tell_start(doing(), self.seams.by_hand.unseen())
                wait_s *= LATER_WORDS

    def _tell_of_absences(self) -> None:
        """Report when long absences begin and end; runs in a background thread."""
        self._is_ready.wait()
        with suppress(LinkClosed):
            while True:
                sleep(SIGN_OF_LIFE_S)
                self._absence.tell(self._progress)

    def _watch_forks(self) -> None:
        """End the rig if the program trains in forked processes; runs in a background thread.

        The program's first process then waits for the others, so there are no steps to measure in
        it.
        """
        trainer = self.forks.wait_for_trainer(lambda: self.steps > 0, waits_for_processes)
        if trainer is not None:
            with suppress(LinkClosed):
                self._refuse_forks()
            self._quit()

    def _refuse_forks(self) -> None:
        with self._turn:
            self._link.send(Ended(0, ForkTrainingError.__name__, "", 1, at_s=time()))

    def on_step_end(self, step: Step) -> None:
        """Continue with the parent's present command at the boundary after a step."""
        self._absence.end()
        self._tally.add(step)
        self._steps_left -= 1
        if self._task is not None:
            self._go_on_with(self._task, step)
        elif self._probe is not None:
            self._tell_of_life()
            if self._probe.step(self.loss):
                self._end_phase(self._probe)
        elif self._taken is not None and self._steps_left <= 0:
            self._conclude(self._taken)

    def _go_on_with(self, task: StepProfiler | Examiner | Turns, step: Step) -> None:
        self._tell_of_life()
        if isinstance(task, Turns):
            task.step(step.samples, step.wait_s, step.tokens)
        else:
            task.step(step.samples, step.wait_s)
        if not task.is_done:
            return
        with self._turn:
            self._task = None
        if isinstance(task, Turns):
            self.seams.rates.hold(held=False)
            if self._group.world_size > 1:
                self._end_together(task)
                return
        if not self._is_answered:
            self._answer_with(task)
        self._obey()

    def _answer_with(self, task: StepProfiler | Examiner | Turns) -> None:
        with self._turn:
            if isinstance(task, Turns):
                self._answer(self._taken_by(task))
            else:
                self._link.send(task.answer(self._number))

    def _answer_examined(self, task: Examiner) -> None:
        """Answer with what was seen so far; runs in a timer thread.

        The program is then within a step that takes very long, or within an item that never comes.
        """
        with self._turn:
            if task is self._task and not self._is_answered:
                self._is_answered = True
                with suppress(LinkClosed):
                    self._link.send(task.answer(self._number))

    def _end_together(self, task: Turns) -> None:
        """Answer for all ranks; if the parent wants to know, first record how they spend time.

        The recording follows the turns, so that torch's profiler cannot slow them down.
        """
        own = replace(self._tally.report(), turns=task.told())
        self._reports = self._gather(own)
        taken = self._taken_by(task, self._reports)
        if self._asked is None or not self._asked.with_loads or not taken.turns:
            self._answer(taken)
            self._obey()
            return
        self._taken = taken
        steps = math.ceil(RECORDED_S / median_step_s(taken.turns))
        self._go_on(RankCommand(min(MAX_RECORDED_STEPS, max(MIN_STEPS, steps)), records=True))
        self._communication.start()

    def _conclude(self, taken: Taken) -> None:
        recorded = self._gather(self._tally.report(self._communication.stop(self._tally.steps)))
        ranks = tuple(
            _load(rank, *reports)
            for rank, reports in enumerate(zip(self._reports, recorded, strict=True))
        )
        self._taken = None
        self._answer(replace(taken, ranks=ranks))
        self._obey()

    def _taken_by(self, task: Turns, reports: Sequence[Report] = ()) -> Taken:
        if self._group.world_size > 1:  # what one rank saw alone says nothing of the group
            turns = of_ranks([report.turns for report in reports]) if reports else ()
        else:
            turns = task.told()
        compilation = self._compiled.read()
        self._compiled.reset()
        samples = None
        if self.feed is not None and self.observer.loaders:
            samples = self.samples_between_starts or self.feed.samples_per_epoch
        return Taken(
            turns,
            self.steps,
            samples and round(samples * self._samples_share),
            self._memory.read(Memory()),
            compilation=compilation,
            effect=self._probed,
            interference=self._host_load.read().since(self._counters),
        )

    def _answer(self, taken: Taken) -> None:
        self._link.send(TookTurns(taken, self._number))

    def _gather(self, own: Report) -> list[Report]:
        """Return the reports of all ranks, once each has arrived.

        From the samples of all ranks it derives the factor by which this rank's samples are
        multiplied to get those of the group.

        Args:
            own: The report of this rank.
        """
        reports = self._meetings.gather(own)
        ranks = (pid for report in reports[1:] for pid in report.pids)
        self._host_load.count_in((*self._group.helpers, *ranks))
        samples = sum(report.samples for report in reports)
        self._samples_share = samples / own.samples if own.samples else float(len(reports))
        return reports

    def _go_on(self, order: RankCommand) -> None:
        self._meetings.announce(order)
        self._steps_left = order.steps
        self._tally = Tally()

    def _tell_of_life(self) -> None:
        if perf_counter() - self._sent > SIGN_OF_LIFE_S:
            self._progress("turns")

    def _progress(self, phase: Phase) -> None:
        if self.forks.is_child:
            # A thread that fork did not copy may hold the lock, and the link is closed here.
            return
        with self._turn:
            self._link.send(Progress(phase))
            self._sent = perf_counter()

    def _obey(self) -> None:
        """Wait for the parent's next command and carry it out.

        The program stands still meanwhile, in its main thread.
        """
        self._overtime.cancel()
        match self._commands.get():
            case TakeTurns(configs, _, number) as asked:
                self._number, self._asked, self._is_answered = number, asked, False
                batches = self._unknown_batches(configs)
                if batches is None:
                    self._begin_turns(asked)
                else:
                    self._probed_sizes.update(batches)
                    self._probe = BatchProbe(*batches, self.seams.forward, self.seams.hubs.steps)
            case ProfileStep(stage_s, number) if self._group.world_size == 1:
                self._number, self._is_answered = number, False
                self._task = StepProfiler(
                    stage_s,
                    self._sync,
                    self.seams,
                    lambda: self._feed_of_this_thread,
                    counts_flops=frames_compiled() == 0,
                )
            case ProfileStep(_, number):  # several ranks are diagnosed by their loads, see RankLoad
                self._link.send(StepProfiled(StepBreakdown(), number))
                self._obey()
            case Examine(number) if self._group.world_size == 1:
                self._number, self._is_answered = number, False
                self._task = task = Examiner(
                    tuple(self.seams.forward.roots),
                    self.observer.device(),
                    lambda: self._feed_of_this_thread,
                    self._allowed_cores,
                    self.seams.hubs.backward,
                    counts=frames_compiled() == 0,
                )
                self._overtime = threading.Timer(MOST_EXAMINED_S, self._answer_examined, (task,))
                self._overtime.daemon = True
                self._overtime.start()
            case Examine(number):  # the ranks' own loads say what there is to say
                self._link.send(Examined(Examination(), number))
                self._obey()
            case Close():
                self._meetings.announce(RankCommand(ends=True))
                self._quit()
            case other:
                raise AssertionError(f"unexpected command {other!r}")

    def _begin_turns(self, asked: TakeTurns) -> None:
        """Begin with a schedule; learning rates stay as the program sets them meanwhile."""
        self._meetings.announce(RankCommand(turns=asked))
        self._tally = Tally()
        if (
            len(asked.configs) == 1
        ):  # it empties the device's cache, for which the next turn would pay
            self._memory.reset()
        self.loss = None  # one from before must not count for these configs
        self._counters = self._host_load.read()
        hands = Hands(self._switch, lambda: self.loss, self._activity)
        self._task = self.turns(asked, hands)

    @property
    def _feed_of_this_thread(self) -> Feed | None:
        """The only training loader's feed; None if there are several or another thread reads it."""
        is_alone = len(self.observer.loaders or ()) == 1 and not self.observer.loader_thread
        return self.feed if is_alone else None

    def _unknown_batches(self, configs: Sequence[AppliedConfig]) -> tuple[int, int] | None:
        """Return the present and a new batch size, if the effect of the change is not known yet.

        Returns:
            None if the batch size stays, if the program applies it itself, if it is known whether
            gradients grow with the batch or was tried in vain, or if several ranks train.
        """
        applied = configs[0]
        before = self.applied.config if self.applied else applied.baseline
        own = before.get("batch_size")
        sizes = [one.config.get("batch_size") for one in configs]
        tried = {own, *self._probed_sizes}
        new = next((size for size in sizes if size and size not in tried), None)
        traits = applied.traits
        by_itself = "batch_size" in traits.program_knobs or "batch_size" in traits.flags
        known = applied.sums is not None or (self._probed and self._probed.sums is not None)
        if not own or not new or by_itself or known or self._group.world_size > 1:
            return None
        return int(own), int(new)

    def _end_phase(self, probe: BatchProbe) -> None:
        """Switch to the new batch size after the probe's first phase; begin after its second."""
        assert self._asked is not None, "a probe comes before what was asked for"
        if not probe.has_turned:
            self.seams.rates.hold(held=True)
            size = probe.after
            self._switch(next(a for a in self._asked.configs if a.config["batch_size"] == size))
            probe.turn()
            return
        self._probe, self._probed = None, probe.end()
        self.steering.set_sums(sums=bool(self._probed.sums))
        self._begin_turns(self._asked)

    def _activity(self) -> int:
        """Return a number that grows while torch compiles or takes memory from the device."""
        return frames_compiled() + self._memory.segments_taken()

    def _sync(self) -> None:
        if self.observer.device() != "cpu":
            torch.accelerator.synchronize()


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
