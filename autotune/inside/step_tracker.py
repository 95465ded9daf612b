"""Find the boundaries between the program's steps, and count what happens in each step."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch

from autotune.inside.data.feed import Feed
from autotune.inside.data.nested import first_tensor
from autotune.inside.first_steps import FirstSteps
from autotune.inside.hubs.saving import Save
from autotune.inside.listener import Listener, Root
from autotune.inside.observe import insist_on_one_group, profile_of
from autotune.inside.passes import EpochEnds
from autotune.inside.ranks.forks import ForkGuard
from autotune.inside.ranks.group import Group
from autotune.inside.seam_set import SeamSet
from autotune.inside.seams.optimizer import device_of
from autotune.inside.seams.rank_checks import parameters_of
from autotune.inside.steering import Steering, loose_knobs
from autotune.inside.step_counts import Step, StepCounts
from autotune.inside.turns import Edges, Hands, Turns
from autotune.machine.probes.torch_memory import SpareMemory
from autotune.measurement.outcome import Epochs
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import KnobValue
from autotune.program.profile import Profile
from autotune.rig.wire import TakeTurns

TOKEN_DTYPES = {torch.int64, torch.int32}  # what embeddings take


class Rank:
    """What a process does with the steps that a ``StepTracker`` finds: it leads, or it follows.

    The hooks are called in the program's main thread; at step boundaries a rank may wait as long as
    it likes, for example for the parent's next command: the program stands still there.
    """

    def on_step_end(self, step: Step) -> None:
        """A step has ended; called from the first step on that follows the observed ones."""

    def observed(self) -> None:
        """The first steps have shown all that a profile holds; called once, at a step boundary."""

    def disturbed(self) -> None:
        """The program does something besides training in the present step, such as validating."""

    def paused(self) -> None:
        """The program leaves its training loop at the end of an epoch; no step is under way."""

    def resumed(self) -> None:
        """The program is back in its training loop, and a step begins."""

    def step_made(self) -> None:
        """A step was counted, within the present step or at its end."""

    def program_ended(self, *, has_failed: bool) -> None:
        """The program has ended, with an exception if it *has_failed*."""

    def left_alone(self) -> None:
        """Another process is measured instead of this one."""

    def leads(self, group: Group) -> None:
        """This process is the first of several ranks that the program itself starts."""

    def forked(self) -> None:
        """The program has forked this process, whose steps are not measured."""


class CapturedStepError(Exception):
    """The program captures its step as a CUDA graph; ``rig.failures`` knows it by this name."""


class StepTracker(Listener):
    """The listener that measures: finds the boundaries of steps and counts what is in them.

    A step boundary is where the program asks the training loader for a batch after an optimizer
    step. For programs without a DataLoader, or whose loader is read by another thread, it is the
    end of an optimizer step. A step that the program makes by hand ends when the program returns to
    its loader, its model or its next backward pass.

    Attributes:
        config_reads: The knobs that the program read from its config, with the values it got.
        applied: The config that it trains under; None runs it as written.
        first: What the first steps show.
        epoch: The pass over the training loader that the program is in, and how it ends.
        counts: What the present step holds so far.
        loss: The last loss, still on its device; None if the program has not shown one.
        steps: Total optimizer steps of the program, in this process.
    """

    def __init__(
        self,
        applied: AppliedConfig | None,
        group: Group,
        rank: Rank,
        epochs: Epochs = Epochs.ENDLESS,
    ) -> None:
        self.epoch = EpochEnds(epochs)
        self.is_endless = self.epoch.is_endless
        self.config_reads: Mapping[str, KnobValue] = {}
        loader, loose = (applied.traits.loader, loose_knobs(applied)) if applied else (None, ())
        self.seams = SeamSet(self, loader, loose, group)
        self.steering = Steering(self.seams)
        self.applied = applied
        self.first = FirstSteps(group)
        self.loss: torch.Tensor | None = None
        self.steps = 0
        self.counts = StepCounts()
        self.forks = ForkGuard(self._forked)
        self._rank = rank

    @property
    def device(self) -> str:
        """Type of the device that holds the trained parameters, such as ``cuda``."""
        lead = self.first.lead
        return self.seams.steps.by_hand.device if lead is None else device_of(lead)

    def profile(self) -> Profile:
        """Return what the first steps have shown."""
        return profile_of(self.device, self.first, self.seams, self.config_reads)

    def program_ended(self, *, has_failed: bool = False) -> None:
        """Tell the rank that the program has ended, with an exception if it *has_failed*."""
        self._rank.program_ended(has_failed=has_failed)

    def stand_aside(self) -> None:
        """Leave the program alone, because another process is measured instead of this one."""
        self.forks.stand_aside()
        self._rank.left_alone()

    def take_ranks(self, group: Group) -> None:
        """Become one of several ranks that the program itself starts, before it trains."""
        self.first.group = group
        self._rank.leads(group)

    def _forked(self) -> None:
        self.counts.has_stepped = False
        self._rank.forked()

    def before_batch(self, feed: Feed) -> None:
        """End the step before, if one was made since the last boundary.

        Only the training loader's feed matters here; if several loaders train, only the first
        one's. A new feed in the middle of a step means that the program has done something else in
        between.
        """
        if not self.seams.steps.by_hand.rests:
            self.seams.steps.by_hand.look()
        now = self.epoch
        is_new = feed is not now.feed
        if is_new and not (self.first.is_training(feed) and self._leads(feed)):
            return
        # This is then the thread that loads, which asks at any time in a step: no boundary here.
        if self.first.loader_thread:
            if is_new:
                now.feed = feed
                self.epoch.trains(feed)
            return
        counts = self.counts
        is_after_a_pause = is_new and not (counts.has_stepped or counts.batches)
        is_part_of_the_step = now.feed is not None and now.steps == 0
        if is_new and not is_part_of_the_step and not is_after_a_pause:
            self._rank.disturbed()  # the program comes back to its loop after doing something else
        if counts.has_stepped:
            self._border()
        if is_new:
            now.begin(feed)
            self.epoch.trains(feed)
            if is_after_a_pause:
                counts.begin()
                self._rank.resumed()
        if counts.clock is not None:
            counts.clock.asked()

    def after_batch(self, feed: Feed, batch: Any, samples: int, wait_s: float) -> None:
        """Count a batch of a training loader; a batch of another loader disturbs the step."""
        counts = self.counts
        if counts.clock is not None and not self.first.loader_thread:
            counts.clock.leave()
        if feed is not self.epoch.feed or self.first.loaders is None:
            self.first.batch_handed_out(feed, batch)
            is_training = self.first.is_training(feed)
            if is_training and not self.forks.is_child:
                self.epoch.trains(feed)
            if self.first.loaders is not None and not is_training:
                self._rank.disturbed()
                return
            if not self._leads(feed):
                counts.wait_s += wait_s
                return
        counts.batch_samples += samples
        counts.batches += 1
        counts.wait_s += wait_s

    def trains_on(self, feed: Feed) -> bool:
        """Return whether a feed belongs to a training loader; always False in a forked process."""
        if self.forks.is_child:
            return False
        loaders = self.first.loaders
        if not feed.handed and not self.is_endless and loaders and feed.wants_gradients:
            facts = self.seams.loader.built.facts
            self.first.loaders = self.epoch.with_rebuilt(feed, loaders, facts)
        return feed is self.epoch.feed or self.first.is_training(feed)

    def starts_over(self, feed: Feed) -> bool:
        """Return whether a training feed restarts when its data are used up.

        In endless mode all do, and the program's code at the end of an epoch does not run.
        """
        return self.epoch.starts_over(feed)

    def cuts(self, feed: Feed) -> bool:
        """Return whether a training feed ends here, where the program expects its epoch to end."""
        is_training = self.first.loaders is not None and self.trains_on(feed)
        return is_training and self.epoch.cuts(feed)

    def epoch_ended(self, feed: Feed) -> None:  # noqa: ARG002
        """Stop learning rate schedules: from here on there are more steps than were planned."""
        self.hold_schedules()

    def pass_ended(self, feed: Feed) -> None:
        """Pause the clocks: until the next pass begins, nothing is part of a step."""
        if feed is self.epoch.feed and not self.first.loader_thread:
            self._rank.paused()

    def hold_schedules(self) -> None:
        """Stop learning rate schedules in endless mode, where they would pass their planned end.

        True epochs have the number of steps that the schedules were planned for.
        """
        if self.is_endless:
            self.seams.steps.accumulation.stops_schedules = True

    def begin_turns(self, asked: TakeTurns, hands: Hands) -> Turns:
        """Begin with a schedule of turns, and return it; rates stay as the program sets them."""
        self.seams.steps.rates.is_held = True
        return Turns(asked, hands, self.edges())

    def edges(self) -> Edges:
        """Return what marks the times of all devices that hold what is trained.

        A program may train tensors that belong to no model which it calls.
        """
        roots, lead = self.seams.model.forward.roots, self.first.lead
        trained = [p for root in roots for p in root.parameters()]
        trained += [] if lead is None else parameters_of([lead])
        return Edges(p.device for p in trained)

    def switch(self, applied: AppliedConfig) -> None:
        """Apply a config between two steps."""
        before = self.applied.config if self.applied else applied.baseline
        if applied.config != before:
            self.hold_schedules()
            self.epoch.note_switch(self.steps)
        self.steering.apply(applied, since=self.applied)
        self.applied = applied

    @property
    def switched_at(self) -> int:  # type: ignore[override]
        """Total number of steps when the config changed last."""
        return self.epoch.switched_at

    @property
    def suspect(self) -> Epochs | None:  # type: ignore[override]
        """The epoch mode to try next if the present one may be why the program fails; else None."""
        return self.epoch.suspect(self.steps)

    def forward_called(self, root: Root, args: tuple[Any, ...]) -> None:
        """Count samples and tokens at the largest model that is called with gradients.

        That need not be the program's largest model: one that collects experience without gradients
        may be trained by calls of its parts. The samples are used for programs without a
        DataLoader. Calls without gradients are counted apart: a step with an unusual number of them
        contains a validation pass.
        """
        if not self.seams.steps.by_hand.rests:
            self.seams.steps.by_hand.look()
        counts = self.counts
        if not torch.is_grad_enabled():
            is_largest = root.parameters >= self.seams.model.forward.most_parameters
            counts.calls_without_grad += is_largest
            return
        counted = counts.root
        if counted is None or root.parameters > counted.parameters:
            counts.root = root
            counts.forward_samples = counts.tokens = 0
        elif root is not counted:
            return
        tensor = first_tensor(args)
        if tensor is not None and tensor.dim() > 1 and tensor.dtype in TOKEN_DTYPES:
            counts.tokens += tensor.numel()
        counts.forward_samples += int(tensor.shape[0]) if tensor is not None else 1

    def after_save(self, save: Save) -> None:  # noqa: ARG002
        """Count what is saved in the thread that trains; another thread saves while it trains."""
        self.counts.saves += threading.current_thread() is threading.main_thread()

    def loss_seen(self, loss: torch.Tensor) -> None:
        """Keep the last loss without reading it, because reading would wait for the device."""
        if loss.numel() == 1:
            self.loss = loss.detach()

    def optimizer_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Note a step of an optimizer; it counts if it belongs to the optimizer that leads.

        In a forked process it only tells the parent process that this process trains.

        Raises:
            CapturedStepError: when the step is captured, so that no later one would be seen.
        """
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise CapturedStepError
        if self.forks.is_child:
            self.forks.tell_step()
        elif self.first.optimizer_stepped(optimizer):
            self.step_made()

    def stepped_by_hand(self) -> None:
        """Note a step that the program made without an optimizer."""
        if self.forks.is_child:
            self.forks.tell_step()
            return
        self.first.stepped_by_hand()
        self.step_made()

    def step_made(self) -> None:
        """Count a step; for programs without a DataLoader it ends the step, too."""
        self.steps += 1
        self.counts.has_stepped = True
        if self.first.loaders is None:
            self.counts.begin()  # discard what happened before the first step: set-up
        elif not self.first.loaders or self.first.loader_thread:
            self._border()
        self._rank.step_made()

    def _leads(self, feed: Feed) -> bool:
        loaders = self.first.loaders
        return not loaders or feed.loader is loaders[0]

    def _border(self) -> None:
        first, counts = self.first, self.counts
        is_ahead = not first.loaders or first.loader_thread
        samples = counts.forward_samples if is_ahead else counts.batch_samples
        if not first.loaders and not self.seams.model.forward.roots:
            samples = 1  # the program trains bare tensors: only steps can be counted
        if not samples and is_ahead:
            samples = counts.in_steps(is_observed=not first.is_complete)
        step, batches = Step(samples, counts.wait_s, counts.tokens), counts.batches
        is_usual = counts.end()
        self.epoch.step_ended(samples)
        if not is_usual:
            self._rank.disturbed()  # a validation pass or a checkpoint
        if first.is_complete:
            self._rank.on_step_end(step)
            return
        if samples:
            first.step_ended(max(1, batches))
        if first.is_complete:
            if self.seams.loader.misses_target:
                raise LookupError(self.seams.loader.describe_missing_target())
            insist_on_one_group(first.group, self.seams)
            is_as_written = self.applied is None or self.applied.is_as_written
            self.steering.spare = SpareMemory(self.device, is_as_written=is_as_written)
            self._rank.observed()
