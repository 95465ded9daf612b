"""Run the program with its epochs cut short, to see whether it survives what lies between them.

Such a run is called a rehearsal. The program itself is unchanged; only its passes over loaders end
early.

Covered: what a program does after an epoch and at its end: evaluation, metrics, schedules,
checkpoints, a second epoch with the workers that are left of the first. Not covered: what it does
every N steps, if N is larger than the number of steps in the short epochs.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from autotune.inside.hubs.saving import Save
from autotune.inside.listener import Listener
from autotune.inside.passes import MAX_BATCHES, Pass, TrainedEpochs
from autotune.inside.ranks.group import ALONE, Group
from autotune.inside.seam_set import SeamSet
from autotune.inside.seams.equal_conditions import equalise
from autotune.inside.steering import Steering, loose_knobs
from autotune.inside.training_recorder import TrainingRecorder
from autotune.machine.process_tree import is_at_work
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import KnobValue
from autotune.program.rehearsal import SILENCE_TOLD_S, Ended, RehearsalPlan, Seen
from autotune.rig.wire import LinkClosed

if TYPE_CHECKING:
    from autotune.inside.data.feed import Feed
    from autotune.inside.listener import Root

# Steps since the last batch. A program may make several steps with one batch; one that makes more
# than this keeps its batches and iterates over them without asking the loader again.
MAX_STEPS = 64


class _Report:
    """Reports once what was seen: at the end, or from a timer thread when time is up.

    Args:
        over: Takes the report; None for a rank that follows another.
    """

    def __init__(
        self, over: Callable[[Seen], None] | None, until_s: float, seen: Callable[[Ended], Seen]
    ) -> None:
        self._over, self._seen = over, seen
        self._once = threading.Lock()  # whoever acquires it reports; it is never released
        self._process = os.getpid()
        self._saving: set[int] = set()  # ids of what is being saved
        self._heard = perf_counter()
        self.timer = threading.Timer(max(0.0, until_s), self.end, ("out of time",))
        self.timer.daemon = True
        if over is not None:
            self.timer.start()

    def hear(self) -> None:
        """Note that the program does something."""
        self._heard = perf_counter()

    def saves(self, save: Save) -> None:
        """Note that the program saves, which may take its time."""
        self._saving.add(id(save))

    def saved(self, save: Save) -> None:
        """Note that the program goes on."""
        self._saving.discard(id(save))
        self.hear()

    def cancel(self) -> None:
        """Report nothing from now on."""
        self._once.acquire(blocking=False)
        self.timer.cancel()

    def end(self, how: Ended) -> None:
        """Report, unless that was done."""
        if self._over is None or os.getpid() != self._process:
            return  # a rank that follows another, or a process that the program has forked
        silent_s = perf_counter() - self._heard
        may_stand_still = how == "out of time" and silent_s >= SILENCE_TOLD_S
        works = may_stand_still and (bool(self._saving) or is_at_work())  # it may end meanwhile
        if not self._once.acquire(blocking=False):
            return
        self.timer.cancel()
        with suppress(LinkClosed):
            self._over(replace(self._seen(how), silent_s=silent_s, is_at_work=works))


class ShortEpochs(Listener):
    """Cuts every pass over a loader short, and counts what the program does.

    The rehearsal ends when the program begins another epoch after the planned ones, once it has had
    some time to reach its own end, or from a timer thread when its time is up. A training loop that
    asks no loader, or no longer asks one, has no epochs: it is ended after that time.

    Args:
        over: Called once, in any thread, with what was seen when there is no more to see; None for
            a rank that follows another.
    """

    def __init__(
        self,
        applied: AppliedConfig,
        plan: RehearsalPlan,
        over: Callable[[Seen], None] | None,
        started: float,
        group: Group = ALONE,
    ) -> None:
        self.rehearsal: RehearsalPlan = plan
        self.config_reads: Mapping[str, KnobValue] = {}
        self.seams = SeamSet(self, applied.traits.loader, loose_knobs(applied), group)
        self.steering = Steering(self.seams)
        self.steps = 0
        self._evaluated: set[int] = set()  # numbers of steps after which it evaluated
        self._first_step_at = math.inf
        self._passes: WeakKeyDictionary[Feed, Pass] = WeakKeyDictionary()
        self._longest = 0
        self._epochs = TrainedEpochs(
            self.seams.loader.built.facts, self.seams.loader.built.is_rebuilt
        )
        self._recorder: TrainingRecorder | None = None
        if (traces := plan.traces) is not None:
            self.seams.model.distribution.patches.is_agreed = True
            equalise(traces, compiles=applied.config.get("compile", "off") != "off")
            self._recorder = TrainingRecorder(
                lambda: self.seams.model.forward.roots,
                lambda: self.seams.steps.optimizer.optimizers,
                traces,
                is_alone=group.world_size == 1,
            )
            self.seams.steps.accumulation.on_held = self._recorder.held
        self._report = _Report(over, plan.most_s - (perf_counter() - started), self._seen)

    def stand_aside(self) -> None:
        """Report nothing from now on: a process that the program has started trains instead."""
        self._report.cancel()

    def take_ranks(self, group: Group) -> None:
        """Accept that this process is one of several ranks; a rehearsal need not change."""

    def program_ended(self, *, has_failed: bool = False) -> None:  # noqa: ARG002
        """Report what was seen until the program ended; how it ended is reported separately."""
        self._report.end("by itself")

    def before_batch(self, feed: Feed) -> None:
        """End the rehearsal if a training epoch begins after all that were planned."""
        self.seams.steps.by_hand.look()
        self._report.hear()
        if feed in self._passes:
            return
        self._passes[feed] = Pass()
        if self._epochs.begins_again(feed) and self._is_enough(self._epochs.count):
            self._report.end("as planned")

    def cuts(self, feed: Feed) -> bool:
        """Return whether a pass over a loader has been long enough.

        A training pass ends after the planned number of batches if a step was made with the last of
        them, so that no accumulated gradients are left over. Otherwise it continues, but not beyond
        the longest training pass so far, or ``MAX_BATCHES`` if there was none. Which batches have
        had their step when another thread asks for the next one is chance, so that is not awaited:
        all runs are cut at the same batch.
        """
        seen, plan = self._passes[feed], self.rehearsal
        if not feed.wants_gradients:
            seen.is_over |= seen.batches >= plan.other_batches
            return seen.is_over
        reads_ahead = self._epochs.thread not in {None, threading.get_ident()}
        has_stepped = reads_ahead or self.steps > seen.steps
        most = max(plan.batches, self._longest or MAX_BATCHES)
        seen.is_over |= seen.batches >= (plan.batches if has_stepped else most)
        if seen.is_over and seen.trains:
            self._longest = max(self._longest, seen.batches)
        return seen.is_over

    def pass_ended(self, feed: Feed) -> None:
        """Note the end of a pass."""
        self._epochs.ended(self._passes[feed])

    def before_save(self, save: Save) -> None:
        """Note that the program saves, which may take its time."""
        self._report.saves(save)

    def after_save(self, save: Save) -> None:
        """Record what is saved where training is traced."""
        if self._recorder is not None:
            self._recorder.saved(save.what)

    def save_ended(self, save: Save) -> None:
        """Note that the program goes on."""
        self._report.saved(save)

    def after_batch(self, feed: Feed, batch: Any, samples: int, wait_s: float) -> None:  # noqa: ARG002
        """Count a batch, and note it where training is traced.

        One without gradients belongs to an evaluation.
        """
        self._report.hear()
        seen = self._passes[feed]
        seen.batches += 1
        seen.steps = self.steps
        if feed.wants_gradients and torch.is_grad_enabled():
            self._epochs.took(feed, seen)
        else:
            self._evaluates()
        if self._recorder is not None and feed.wants_gradients:
            self._recorder.batch_handed(batch, samples)

    def loss_seen(self, loss: torch.Tensor) -> None:
        """Note the loss, where training is traced."""
        if self._recorder is not None:
            self._recorder.loss_seen(loss)

    def forward_called(self, root: Root, args: tuple[Any, ...]) -> None:  # noqa: ARG002
        """Notice an evaluation whose samples do not come from a loader.

        Only calls without gradients after the end of a training pass count as an evaluation, and
        those during a pass over a loader that does not train, which began with gradients.
        """
        self.seams.steps.by_hand.look()
        self._report.hear()
        if self._recorder is not None:
            self._recorder.forward_called()
        if torch.is_grad_enabled():
            self._epochs.forwarded()
        last = self._epochs.last
        is_between = last is not None and (last.is_over or not self._epochs.last_trains)
        if is_between and not torch.is_grad_enabled():
            self._evaluates()

    def optimizer_stepped(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Count a step; end the rehearsal with the first one of an epoch that is one too many."""
        self._report.hear()
        if self._epochs.stepped() and self._is_enough(self._epochs.count - 1):
            self._report.end("as planned")
        self.steps += 1
        self._first_step_at = min(self._first_step_at, perf_counter())
        if self._recorder is not None:
            self._recorder.stepped(optimizer, self._epochs.count)
            if self._recorder.is_over:
                self._report.end("as planned")
        last = self._epochs.last
        has_no_epochs = last is None or self.steps - last.steps > MAX_STEPS
        if has_no_epochs and self._is_long_enough:
            self._report.end("as planned")

    def stepped_by_hand(self) -> None:
        """Count a step that the program made without an optimizer."""
        self.optimizer_stepped(None)

    @property
    def _is_long_enough(self) -> bool:
        plan, trained_s = self.rehearsal, perf_counter() - self._first_step_at
        return self.steps >= plan.least_steps and trained_s >= plan.enough_s

    def _is_enough(self, epochs: int) -> bool:
        if epochs < self.rehearsal.epochs:
            return False
        return self._is_long_enough or epochs >= self.rehearsal.most_epochs

    def _evaluates(self) -> None:
        if self.steps:
            self._evaluated.add(self.steps)

    def _seen(self, how: Ended) -> Seen:
        trace = None if self._recorder is None else self._recorder.trace
        return Seen(self.steps, self._epochs.count, len(self._evaluated), how, trace=trace)
