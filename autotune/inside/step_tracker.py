"""Find the boundaries between the program's steps, and count what happens in each step."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

from autotune.inside.data.feed import Feed
from autotune.inside.data.nested import first_tensor
from autotune.inside.epochs import EpochEnds, known_by, uncounted
from autotune.inside.hubs.saving import Save
from autotune.inside.listener import BatchClock, Listener, Root
from autotune.inside.observe import Observer
from autotune.inside.ranks.forks import ForkGuard
from autotune.inside.ranks.group import Group
from autotune.inside.seam_set import SeamSet
from autotune.inside.steering import Steering, loose_knobs
from autotune.inside.turns import Hands, Turns
from autotune.inside.turns.edges import edges_of
from autotune.measurement.run_mode import Epochs
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import KnobValue
from autotune.rig.wire import TakeTurns

# Within this many steps after a switch, a failure is blamed on the config, not on the epoch mode.
JUST_SWITCHED = 3
# In a program without a DataLoader, some of the first steps may not call the model that is counted.
# After this many, a step is the only unit that can be counted.
MAX_UNCOUNTED = 8
# Number of recent steps to which a step's calls without gradients, and what it saved, are compared:
# counts that none of them had are a validation pass or a checkpoint. A teacher model is called
# equally often in every step.
STEPS_ALIKE = 4
TOKEN_DTYPES = {torch.int64, torch.int32}  # what embeddings take


@dataclass(frozen=True)
class Step:
    """What a finished step consisted of.

    Attributes:
        samples: Samples that the step trained on.
        wait_s: Seconds of the step in which the program waited for batches.
        tokens: Token ids that went into the model; 0 if its input is not token ids.
    """

    samples: int
    wait_s: float
    tokens: int


@dataclass
class _Counts:
    """What happened since the last step boundary."""

    batch_samples: int = 0
    forward_samples: int = 0
    batches: int = 0
    wait_s: float = 0.0
    tokens: int = 0
    calls_without_grad: int = 0
    saves: int = 0
    root: Root | None = None  # the largest that was called with gradients


class StepTracker(Listener):
    """Base class of the listeners that measure: finds step boundaries and counts samples.

    The seams call it inside the calls that they intercept, in the program's main thread; batches
    may be asked for in another thread. Subclasses are ``LeadRank``, which obeys the parent, and
    ``FollowerRank``, which obeys the first rank.

    A step boundary is where the program asks the training loader for a batch after an optimizer
    step. For programs without a DataLoader, or whose loader is read by another thread, it is the
    end of an optimizer step. A step that the program makes by hand ends when the program returns to
    its loader, its model or its next backward pass. At a boundary a subclass may wait as long as it
    likes, for example for the parent's next command: the program stands still there.

    Args:
        applied: What the program starts under; None runs it as written.
        group: The processes that train together.
        epochs: How the program's epochs end.

    Attributes:
        feed: The pass over the training loader that the program is in; None before the first one.
        steps: Total optimizer steps of the program, in this process.
        batches_per_step: Batches of the last step, at least 1.
        samples_between_starts: Samples between the beginnings of the last two passes that the
            program made over its training loader, in endless mode; None if unknown.
        applied: The config that it trains under; None runs it as written.
        loss: The last loss, still on its device; None if the program has not shown one.
    """

    def __init__(
        self, applied: AppliedConfig | None, group: Group, epochs: Epochs = Epochs.ENDLESS
    ) -> None:
        self._ends = EpochEnds(epochs)
        self.is_endless = self._ends.is_endless
        self.config_reads: Mapping[str, KnobValue] = {}
        self.seams = (
            SeamSet(self, applied.traits.loader, loose_knobs(applied), group)
            if applied
            else SeamSet(self, target=None, group=group)
        )
        self.steering = Steering(self.seams)
        self.applied = applied
        self.observer = Observer(self.seams, group)
        self._group = group
        self.feed: Feed | None = None
        self.samples_between_starts: int | None = None
        self.batches_per_step = 1
        self.loss: torch.Tensor | None = None
        self.steps = 0
        self.switched_at = 0  # total steps; starting the rig counts as the first switch
        self._has_switched_beyond = False
        self._feed_steps = 0
        self._feed_samples = 0
        self._counts = _Counts()
        self._usual = deque([(0, 0)], maxlen=STEPS_ALIKE)
        self._stepped = False
        self._uncounted = 0
        self._adopted: dict[int, int] = {}  # by place in `loaders`: number of its last adoption
        self.forks = ForkGuard(self._forked)

    @abstractmethod
    def on_step_end(self, step: Step) -> None:
        """A step has ended; called from the first step on that follows the observed ones."""

    @abstractmethod
    def observed(self) -> None:
        """The first steps have shown all that a profile holds; called once, at a step boundary."""

    def disturbed(self) -> None:
        """The program does something besides training in the present step, such as validating."""

    def paused(self) -> None:
        """The program leaves its training loop at the end of an epoch; no step is under way."""

    def resumed(self, begin_s: float) -> None:
        """The program is back in its training loop, and a step begins.

        Args:
            begin_s: Seconds that the new pass over the loader took to begin.
        """

    @property
    def clock(self) -> BatchClock | None:
        """The clock that times the parts of the present step; None if nothing is timed."""
        return None

    def program_ended(self, *, has_failed: bool = False) -> None:
        """The program has ended.

        Args:
            has_failed: Whether it ended with an exception.
        """

    def stand_aside(self) -> None:
        """Leave the program alone, because another process is measured instead of this one."""
        self.forks.stand_aside()

    def take_ranks(self, group: Group) -> None:
        """Become one of several ranks that the program itself starts, before it trains."""
        self._group = group
        self.observer.take_ranks(group)

    def _forked(self) -> None:
        """Reset the state in a process that the program has forked; its steps are not measured."""
        self._stepped = False

    def before_batch(self, feed: Feed) -> None:
        """End the step before, if one was made since the last boundary.

        Only the training loader's feed matters here; if several loaders train, only the first
        one's. A new feed in the middle of a step means that the program has done something else in
        between.
        """
        self.seams.by_hand.look()
        if feed is not self.feed and not (self.observer.is_training(feed) and self._leads(feed)):
            return
        # This is then the thread that loads, which asks at any time in a step: no boundary here.
        if self.observer.loader_thread:
            self.feed = feed
            return
        is_new = self.feed is not feed
        is_part_of_the_step = self.feed is not None and self._feed_steps == 0
        is_after_a_pause = is_new and not (self._stepped or self._counts.batches)
        if is_new and not is_part_of_the_step and not is_after_a_pause:
            self.disturbed()  # the program comes back to its loop after doing something else
        if self._stepped:
            self._border()
        if is_new:
            self._take_up(feed)
            if is_after_a_pause:
                self._counts = _Counts()
                self.resumed(feed.begin_s)
        if (clock := self.clock) is not None:
            clock.asked()

    def after_batch(self, feed: Feed, samples: int, wait_s: float) -> None:
        """Count a batch of a training loader; a batch of another loader disturbs the step."""
        if (clock := self.clock) is not None and not self.observer.loader_thread:
            clock.leave()
        is_known = feed is self.feed
        if not is_known:
            self.observer.batch_handed_out(feed)
            if self.observer.loaders is not None and not self.observer.is_training(feed):
                self._ends.took(feed, self.steps, trains=False)
                self.disturbed()
                return
        self._ends.took(feed, self.steps, trains=self.trains_on(feed))
        if is_known or self._leads(feed):
            self._counts.batch_samples += samples
            self._counts.batches += 1
        self._counts.wait_s += wait_s

    def trains_on(self, feed: Feed) -> bool:
        """Return whether a feed belongs to a training loader; always False in a forked process."""
        if self.forks.is_child:
            return False
        if not feed.handed:
            self._adopt(feed)
        return feed is self.feed or self.observer.is_training(feed)

    def starts_over(self, feed: Feed) -> bool:
        """Return whether a training feed restarts when its data are used up.

        In endless mode it does, and the program's code at the end of an epoch does not run.
        """
        return self._ends.starts_over(feed)

    def cuts(self, feed: Feed) -> bool:
        """Return whether a feed ends here; only in true or whole epochs.

        Training ends where the program expects its epoch to end. In true epochs, passes that train
        nothing are also cut short.
        """
        if self.is_endless or self.forks.is_child or self.observer.loaders is None:
            return False
        return self._ends.cuts(feed, self.steps, trains=self.trains_on(feed))

    def epoch_ended(self, feed: Feed) -> None:  # noqa: ARG002
        """Stop learning rate schedules: from here on there are more steps than were planned."""
        self.hold_schedules()

    def pass_ended(self, feed: Feed) -> None:
        """Pause the clocks: until the next pass begins, nothing is part of a step."""
        if feed is self.feed and not self.observer.loader_thread:
            self.paused()

    def hold_schedules(self) -> None:
        """Stop learning rate schedules in endless mode, where they would pass their planned end.

        True epochs have the number of steps that the schedules were planned for.
        """
        if self.is_endless:
            self.seams.scheduler.hold()

    def turns(self, asked: TakeTurns, hands: Hands) -> Turns:
        """Begin with a schedule of turns, and return it; loaders of configs that rest are kept."""
        self.seams.rates.hold(held=True)
        self.seams.loader.keep(enabled=True)
        devices = (p.device for root in self.seams.forward.roots for p in root.parameters())
        return Turns(asked, hands, edges_of(devices))

    def _switch(self, applied: AppliedConfig) -> None:
        before = self.applied.config if self.applied else applied.baseline
        if applied.config != before:
            self.hold_schedules()
            self.note_switch()
        self.steering.apply(applied, since=self.applied)
        self.applied = applied

    def note_switch(self) -> None:
        """Note that the config changes here, to tell its failures from those of the epoch mode."""
        self.switched_at = self.steps
        self._has_switched_beyond = self._ends.is_beyond

    @property
    def suspect(self) -> Epochs | None:  # type: ignore[override]
        """The epoch mode to try next if the present one may be why the program fails; else None."""
        is_recent = self.steps - self.switched_at <= JUST_SWITCHED
        return self._ends.suspect(
            self.steps, has_just_switched=self._has_switched_beyond and is_recent
        )

    def forward_called(self, root: Root, args: tuple[Any, ...]) -> None:
        """Count samples and tokens at the largest model that is called with gradients.

        That need not be the program's largest model: one that collects experience without gradients
        may be trained by calls of its parts. The samples are used for programs without a
        DataLoader. Calls without gradients are counted apart: a step with an unusual number of them
        contains a validation pass.
        """
        self.seams.by_hand.look()
        if not torch.is_grad_enabled():
            is_largest = root.parameters >= self.seams.forward.most_parameters
            self._counts.calls_without_grad += is_largest
            return
        counted = self._counts.root
        if counted is None or root.parameters > counted.parameters:
            self._counts.root = root
            self._counts.forward_samples = self._counts.tokens = 0
        elif root is not counted:
            return
        tensor = first_tensor(args)
        if tensor is not None and tensor.dim() > 1 and tensor.dtype in TOKEN_DTYPES:
            self._counts.tokens += tensor.numel()
        self._counts.forward_samples += int(tensor.shape[0]) if tensor is not None else 1

    def after_save(self, save: Save) -> None:  # noqa: ARG002
        """Count what is saved in the thread that trains; another thread saves while it trains."""
        self._counts.saves += threading.current_thread() is threading.main_thread()

    def loss_seen(self, loss: torch.Tensor) -> None:
        """Keep the last loss without reading it, because reading would wait for the device."""
        if loss.numel() == 1:
            self.loss = loss.detach()

    def optimizer_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Note a step of an optimizer; it counts if it belongs to the optimizer that leads.

        In a forked process it only tells the parent process that this process trains.
        """
        if self.forks.is_child:
            self.forks.tell_step()
        elif self.observer.optimizer_stepped(optimizer):
            self.step_made()

    def stepped_by_hand(self) -> None:
        """Note a step that the program made without an optimizer."""
        if self.forks.is_child:
            self.forks.tell_step()
            return
        self.observer.stepped_by_hand()
        self.step_made()

    def step_made(self) -> None:
        """Count a step; for programs without a DataLoader it ends the step, too."""
        self.steps += 1
        self._stepped = True
        if self.observer.loaders is None:
            self._counts = _Counts()  # discard what happened before the first step: set-up
        elif not self.observer.loaders or self.observer.loader_thread:
            self._border()

    def _take_up(self, feed: Feed) -> None:
        """Follow a new pass over the training loader."""
        if self._feed_steps > 1 and self.is_endless:
            self.samples_between_starts = self._feed_samples
        self.feed, self._feed_steps, self._feed_samples = feed, 0, 0

    def _adopt(self, feed: Feed) -> None:
        """Recognize a training loader that the program has rebuilt for a new epoch.

        It takes the place of the loader with the same facts. If several have the same facts, it
        takes the place of the one that was rebuilt longest ago.
        """
        loaders = self.observer.loaders
        if self.is_endless or not loaders or not feed.wants_gradients:
            return
        facts = self.seams.loader.facts
        its = known_by(facts, feed)
        alike = [n for n, own in enumerate(loaders) if uncounted(facts(own)) == its]
        if alike and not any(feed.loader is own for own in loaders):
            place = min(alike, key=lambda n: self._adopted.get(n, 0))
            self._adopted[place] = 1 + max(self._adopted.values(), default=0)
            self.observer.loaders = (*loaders[:place], feed.loader, *loaders[place + 1 :])

    def _leads(self, feed: Feed) -> bool:
        loaders = self.observer.loaders
        return not loaders or feed.loader is loaders[0]

    def _border(self) -> None:
        counts = self._counts
        besides = counts.calls_without_grad, counts.saves
        is_usual = besides in self._usual
        self._usual.append(besides)
        self.batches_per_step = max(1, counts.batches)
        self._counts, self._stepped = _Counts(), False
        is_ahead = not self.observer.loaders or self.observer.loader_thread
        samples = counts.forward_samples if is_ahead else counts.batch_samples
        if not self.observer.loaders and not self.seams.forward.roots:
            samples = 1  # the program trains bare tensors: only steps can be counted
        if not samples and is_ahead:
            self._uncounted += not self.observer.is_complete
            samples = int(self._uncounted > MAX_UNCOUNTED)  # then count steps instead of samples
        self._feed_steps += 1
        self._feed_samples += samples
        if not is_usual:
            self.disturbed()  # a validation pass or a checkpoint
        if self.observer.is_complete:
            self.on_step_end(Step(samples, counts.wait_s, counts.tokens))
            self.seams.forward.calls.clear()
            return
        if samples:
            self.observer.step_ended(self.batches_per_step)
        if self.observer.is_complete:
            if self.seams.loader.misses_target:
                raise LookupError(self.seams.loader.describe_missing_target())
            self._insist_on_one_group()
            self.observed()

    def _insist_on_one_group(self) -> None:
        """Raise an error if the ranks do not train in one process group.

        Ranks that do not know of each other would each train a separate model, and look faster for
        it.
        """
        if self.seams.distribution.has_ranks:
            return
        size = distributed.get_world_size() if distributed.is_initialized() else 1
        if size != self._group.world_size:
            raise RuntimeError(_no_group(size, self._group))


def _no_group(size: int, group: Group) -> str:
    """Return the error message for processes that do not train together, with the remedy.

    Args:
        size: Number of processes in the program's process group; 1 without one.
        group: The processes that were expected to train together.
    """
    if group.world_size == 1:
        return (
            f"the program trains in a group of {size} processes, of which autotune has seen one "
            "start. Let autotune start them: autotune search -- torchrun --nproc-per-node "
            f"{size} train.py"
        )
    trains = f"the program trains in groups of {size} where {group.world_size} ranks were started"
    if not group.started_by:
        return (
            f"{trains}: it does not take its rank and world size from torchrun. Call "
            "init_process_group() with the rank and world size that torchrun sets"
        )
    return (
        f"{trains} by {group.started_by}: its processes train separate models, or join processes "
        "on other machines. Search it with one such process, or let each process call "
        "init_process_group() with its rank and the total number of processes"
    )
