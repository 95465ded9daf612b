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
from autotune.inside.data.feed import Feed, steps_per_epoch
from autotune.inside.examining.examiner import Examiner
from autotune.inside.listener import BatchClock
from autotune.inside.meter import Flow, Instruments, Meter
from autotune.inside.pilots import Pilots
from autotune.inside.ranks.communication import MIN_STEPS, CommunicationClock
from autotune.inside.ranks.follower_rank import Tally
from autotune.inside.ranks.forks import ForkTrainingError
from autotune.inside.ranks.group import ALONE, Group
from autotune.inside.ranks.rank_sync import RankCommand, RankSync, Report, gpus_of
from autotune.inside.standstill import doing, waits_for_processes
from autotune.inside.step_profiler import StepProfiler
from autotune.inside.step_tracker import Step, StepTracker
from autotune.inside.turns import Turns
from autotune.inside.turns.edges import edges_of
from autotune.machine.probes import page_faults
from autotune.machine.probes.host_load import HostLoad
from autotune.machine.probes.torch_memory import TorchMemory, torch_gpus
from autotune.measurement.batch_effect import BatchEffect
from autotune.measurement.examination import Examination
from autotune.measurement.measurement import Measurement
from autotune.measurement.memory import Memory
from autotune.measurement.pilot import Pilot
from autotune.measurement.rank_load import RankLoad
from autotune.measurement.step_breakdown import StepBreakdown
from autotune.program.applied_config import AppliedConfig
from autotune.rig.link import Link, LinkClosed
from autotune.rig.wire import (
    Close,
    Ended,
    Examine,
    Examined,
    Measure,
    Measured,
    NotFinite,
    Phase,
    ProfileStep,
    Progress,
    Ready,
    Start,
    StepProfiled,
    TakeTurns,
    TookTurns,
    ToRig,
    WindowPlan,
)

SIGN_OF_LIFE_S = 5.0
PROGRESS_S = 0.3  # a message costs about 0.1 ms, and nobody reads them faster
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
    forked processes and report long absences. A timer thread answers a window whose time is up
    while the program is within a long step. The lock ``_turn`` keeps them apart.

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
        self._is_brief = start.program.mode.brief
        self._link = link
        self._commands = commands
        self._applied = start.applied
        self._started = started
        self._first_step_s: float | None = None
        self._quit = quit_process
        self._meetings = RankSync(group)
        self._communication = CommunicationClock()
        self._tally = Tally()
        self._steps_left = 0
        self._samples_share = 1.0
        self._last_block: list[Report] = []
        self._meter: Meter | None = None
        self._task: StepProfiler | Examiner | Turns | None = None
        self._probe: BatchProbe | None = None
        self._probed: BatchEffect | None = None
        self._asked: Measure | None = None
        self._asked_at = started
        self._measured: Measurement | None = None
        self._memory = TorchMemory("cpu")
        self._compiled = CompileCounter()
        self._host_load = HostLoad(os.getppid())
        self._pilots = Pilots(start.cores, others_s=self._host_load.others_s)
        self._pilots_before: tuple[Pilot, ...] = ()
        self._fault_s = 0.0
        self._allowed_cores = start.allowed_cores
        self._sent = started
        self._turn = threading.RLock()  # guards the meter and the link against the timer thread
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
        task = self._meter or self._task
        if task is not None:
            task.disturb()
        if self._is_ready.is_set() and perf_counter() - self._sent > SIGN_OF_LIFE_S:
            self._progress(self._absence.phase)

    def paused(self) -> None:
        """Stop the clocks at the end of an epoch."""
        if self.forks.is_child:
            return
        with self._turn:
            self._tally.pause()
            if self._meter is not None and not self._is_answered:
                self._meter.pause()
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
            task = self._meter or self._task
            if task is not None:
                task.resume(begin_s)
            self._absence.end()

    def program_ended(self, *, has_failed: bool = False) -> None:
        """Answer an open question with what was measured before the program ended.

        The results of a program that fails are discarded: the failure, which is reported next, is
        then the answer. Otherwise the parent could take the failure for the answer to its next
        question, which may be about another config.
        """
        with self._turn:
            meter, measured = self._meter, self._measured
            if not self.steps and self.forks.trainer is not None:
                self._refuse_forks()
            elif has_failed:
                self._is_answered = True
            elif measured is not None:
                self._measured = None
                self._answer(measured)
            elif meter is not None and not self._is_answered:
                self._is_answered = True  # even if there is too little for an answer
                if meter.finish("the program ended", with_what_there_is=self._is_brief):
                    self._answer(self._measurement(meter))
            elif self._task is not None:
                self._task.close()
                self._link.send(self._task.answer(self._number))

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
                progress = Progress("start-up", 0.0, self.steps, elapsed_s, what, unseen)
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
        is_meeting = self._steps_left <= 0
        if self._task is not None:
            self._go_on_with(self._task, step)
        elif self._probe is not None:
            if perf_counter() - self._sent > SIGN_OF_LIFE_S:
                self._progress("warm-up")
            if self._probe.step(self.loss):
                self._end_phase(self._probe)
        elif self._measured is not None:
            if is_meeting:
                self._conclude(self._measured)
        elif self._meter is not None:
            self._measure(self._meter, step, is_meeting=is_meeting)

    def _measure(self, meter: Meter, step: Step, *, is_meeting: bool) -> None:
        samples = round(step.samples * self._samples_share)
        tokens = round(step.tokens * self._samples_share)
        with self._turn:
            is_late = self._is_answered
            closed_a_block = not is_late and meter.step(samples, step.wait_s, tokens)
            has_failed = closed_a_block and not _is_finite(meter.losses)
            # Read under the lock: without it, the timer thread may end the window meanwhile.
            is_done = not is_late and meter.is_done
            self._is_answered |= has_failed or is_done
        if perf_counter() - self._sent > (PROGRESS_S if closed_a_block else SIGN_OF_LIFE_S):
            self._progress(meter.phase, meter.blocks[-1].samples_per_s if meter.blocks else 0.0)
        if not is_meeting:
            return
        self._last_block = self._gather(self._tally.report())
        if is_late:
            self._obey()
        elif has_failed:
            assert self._applied is not None, "a window is measured under a config"
            self._link.send(NotFinite(self._applied.config, self._number))
            self._obey()
        elif is_done:
            # The parent waits no longer than for the window, if its time was up
            pilots = () if meter.has_run_out else self._read_pilots()
            self._finish(self._measurement(meter, pilots))
        else:
            if closed_a_block:
                meter.go_on()
            self._go_on(RankCommand(meter.steps_to_go))

    def _answer_in_overtime(self, meter: Meter) -> None:
        """Answer a window whose time is up with what it has; runs in a timer thread.

        The program is then within a step that takes longer than the time left. Nothing happens if
        the window was answered already or has no block yet.
        """
        with self._turn:
            if meter is not self._meter or self._is_answered or not meter.end_now():
                return
            self._is_answered = True
            with suppress(LinkClosed):
                self._answer(self._measurement(meter))

    def _answer_examined(self, task: Examiner) -> None:
        """Answer with what was seen so far; runs in a timer thread.

        The program is then within a step that takes very long, or within an item that never comes.
        """
        with self._turn:
            if task is self._task and not self._is_answered:
                self._is_answered = True
                with suppress(LinkClosed):
                    self._link.send(task.answer(self._number))

    def _finish(self, measurement: Measurement) -> None:
        """Send a measurement; with several ranks, first record their communication for a few steps.

        The recording follows the window, so that torch's profiler cannot slow down the measured
        steps.
        """
        if self._group.world_size == 1:
            self._answer(measurement)
            self._obey()
            return
        self._measured = measurement
        steps = math.ceil(RECORDED_S / measurement.step_s)
        steps = min(MAX_RECORDED_STEPS, max(MIN_STEPS, steps))
        self._go_on(RankCommand(steps, records=True))
        self._communication.start()

    def _conclude(self, measurement: Measurement) -> None:
        recorded = self._gather(self._tally.report(self._communication.stop(self._tally.steps)))
        ranks = tuple(
            _load(rank, *reports)
            for rank, reports in enumerate(zip(self._last_block, recorded, strict=True))
        )
        self._measured = None
        self._answer(replace(measurement, ranks=ranks))
        self._obey()

    def _answer(self, measurement: Measurement) -> None:
        self._link.send(Measured(measurement, self._number, self.steps))

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

    def _progress(self, phase: Phase, samples_per_s: float = 0.0) -> None:
        if self.forks.is_child:
            # A thread that fork did not copy may hold the lock, and the link is closed here.
            return
        with self._turn:
            self._link.send(Progress(phase, samples_per_s))
            self._sent = perf_counter()

    def _go_on_with(self, task: StepProfiler | Examiner | Turns, step: Step) -> None:
        if perf_counter() - self._sent > SIGN_OF_LIFE_S:
            self._progress("window")
        task.step(step.samples, step.wait_s)
        if task.is_done:
            with self._turn:
                self._task = None
                if isinstance(task, Turns):
                    self.seams.rates.hold(held=False)
                if not (isinstance(task, Examiner) and self._is_answered):
                    self._link.send(task.answer(self._number))
            self._obey()

    def _read_pilots(self) -> tuple[Pilot, ...]:
        """Time the pilots, unless the program goes on computing or there are several ranks."""
        if self._group.world_size > 1:
            return ()
        self._sync()
        feed = self.feed
        config = None if self._applied is None else self._applied.config
        return self._pilots.read(lambda: feed is None or feed.is_at_rest, config)

    def _measurement(self, meter: Meter, pilots_after: tuple[Pilot, ...] = ()) -> Measurement:
        measurement = meter.measurement(self._memory.read(Memory()))
        compilation = self._compiled.read()
        self._compiled.reset()
        return replace(
            measurement,
            compilation=compilation,
            pilots_before=self._pilots_before,
            pilots_after=pilots_after,
            fault_s=self._fault_s,
            effect=self._probed,
        )

    def _obey(self) -> None:
        """Wait for the parent's next command and carry it out.

        The program stands still meanwhile, in its main thread.
        """
        self._overtime.cancel()
        match self._commands.get():
            case Measure(applied, plan, number) as asked:
                self.seams.loader.keep(enabled=False)
                # Announced before the switch, because the other ranks wait for it.
                self._meetings.announce(RankCommand(1, applied))
                self._steps_left = 1
                with self._turn:
                    self._meter, self._number = None, number
                batches = self._unknown_batches(applied)
                if batches is None:
                    self._switch(applied)
                    self._begin_window(plan, number)
                else:
                    self._probe = BatchProbe(*batches, self.seams.forward)
                    self._asked, self._asked_at = asked, perf_counter()
            case ProfileStep(plan, number) if self._group.world_size == 1:
                with self._turn:
                    self._meter, self._number = None, number
                self._task = StepProfiler(
                    plan,
                    self._instruments(),
                    self.seams,
                    lambda: self._feed_of_this_thread,
                    counts_flops=frames_compiled() == 0,
                )
            case TakeTurns(number=number) as asked_turns if self._group.world_size == 1:
                with self._turn:
                    self._meter, self._number = None, number
                self._begin_turns(asked_turns)
            case TakeTurns(number=number):
                self._link.send(TookTurns((), number))
                self._obey()
            case ProfileStep(_, number):  # several ranks are diagnosed by their loads, see RankLoad
                self._link.send(StepProfiled(StepBreakdown(), number))
                self._obey()
            case Examine(number) if self._group.world_size == 1:
                with self._turn:
                    self._meter, self._number = None, number
                self._is_answered = False
                self._task = task = Examiner(
                    tuple(self.seams.forward.roots),
                    self.observer.device(),
                    lambda: self._feed_of_this_thread,
                    self._allowed_cores,
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
        self.seams.rates.hold(held=True)
        self.seams.loader.keep(enabled=True)
        devices = (p.device for root in self.seams.forward.roots for p in root.parameters())
        self._task = Turns(asked, self._switch, edges_of(devices))

    @property
    def _feed_of_this_thread(self) -> Feed | None:
        """The only training loader's feed; None if there are several or another thread reads it."""
        is_alone = len(self.observer.loaders or ()) == 1 and not self.observer.loader_thread
        return self.feed if is_alone else None

    def _switch(self, applied: AppliedConfig) -> None:
        before = self._applied.config if self._applied else applied.baseline
        if applied.config != before:
            self.hold_schedules()
            self.note_switch()
        self.steering.apply(applied, since=self._applied)
        self._applied = applied

    def _unknown_batches(self, applied: AppliedConfig) -> tuple[int, int] | None:
        """Return the present and the new batch size, if the effect of the change is not known yet.

        Returns:
            None if the batch size stays, if the program applies it itself, if it is known whether
            gradients grow with the batch, or if several ranks train.
        """
        before = self._applied.config if self._applied else applied.baseline
        own, new = before.get("batch_size"), applied.config.get("batch_size")
        traits = applied.traits
        by_itself = "batch_size" in traits.program_knobs or "batch_size" in traits.flags
        known = applied.sums is not None or (self._probed and self._probed.sums is not None)
        if not own or not new or own == new or by_itself or known or self._group.world_size > 1:
            return None
        return int(own), int(new)

    def _end_phase(self, probe: BatchProbe) -> None:
        """Switch to the new batch size after the probe's first phase; measure after its second.

        The probe's time is taken from the window, because the parent's limit applies to both
        together.
        """
        assert self._asked is not None, "a probe comes before what was asked for"
        if not probe.has_turned:
            self.seams.rates.hold(held=True)
            self._switch(self._asked.applied)
            probe.turn()
            return
        self._probe, self._probed = None, probe.end()
        self.seams.rates.hold(held=False)
        self.steering.set_sums(sums=bool(self._probed.sums))
        plan, took_s = self._asked.plan, perf_counter() - self._asked_at
        if plan.most_s is not None:  # the limit on the whole answer, the probe included
            plan = replace(plan, most_s=max(0.0, plan.most_s - took_s))
        self._begin_window(plan, self._asked.number)

    def _begin_window(self, plan: WindowPlan, number: int) -> None:
        self._memory.reset()
        self.loss = None  # a loss of the config before must not count for this one
        self._tally = Tally()
        began = perf_counter()
        self._pilots_before = self._read_pilots()
        self._fault_s = self._fault_s or page_faults.seconds_each()
        if plan.most_s is not None:
            plan = replace(plan, most_s=max(0.0, plan.most_s - (perf_counter() - began)))
        meter = Meter(plan, self._instruments())
        meter.disturb()  # the first step also contains the switch of the config
        with self._turn:
            self._meter, self._number, self._is_answered = meter, number, False
        if plan.most_s is not None:
            self._overtime = threading.Timer(plan.most_s, self._answer_in_overtime, (meter,))
            self._overtime.daemon = True
            self._overtime.start()

    def _instruments(self) -> Instruments:
        return Instruments(
            self._flow,
            self._sync,
            self._read_loss,
            self._activity,
            self._host_load.read,
            page_faults.count,
        )

    def _activity(self) -> int:
        """Return a number that grows while torch compiles or takes memory from the device."""
        return frames_compiled() + self._memory.segments_taken()

    def _flow(self) -> Flow:
        feed = self.feed
        if feed is None or not self.observer.loaders:
            return Flow()
        batches = self.batches_per_step
        ready = feed.ready_batches
        samples = self.samples_between_starts or feed.samples_per_epoch
        return Flow(
            buffered_steps=math.ceil(feed.buffered_batches / batches),
            cycle_steps=max(1, math.ceil(feed.num_workers / batches)),
            steps_per_epoch=steps_per_epoch(feed, batches),
            samples_per_epoch=samples and round(samples * self._samples_share),
            start_s=feed.start_s,
            starts=self.starts,
            ready_steps=None if ready is None else ready / batches,
            has_idle_workers=feed.has_idle_workers,
        )

    def _sync(self) -> None:
        if self.observer.device() != "cpu":
            torch.accelerator.synchronize()

    def _read_loss(self) -> float | None:
        return None if self.loss is None else float(self.loss.item())


def _is_finite(losses: Sequence[float | None]) -> bool:
    """Return whether the last loss is finite; True if the program shows none."""
    last = losses[-1] if losses else None
    return last is None or math.isfinite(last)


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
