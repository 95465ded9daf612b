"""StepTracker: where one step of the program ends and the next begins, and what lay in between."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import distributed

from autotune.inside.data.feed import Feed, first_tensor
from autotune.inside.epochs import EpochEnds, known_by
from autotune.inside.listener import Listener, Root
from autotune.inside.observe import Observer
from autotune.inside.ranks.forks import ForkGuard
from autotune.inside.ranks.group import Group
from autotune.inside.seams import SeamSet
from autotune.inside.seams.parts import PartsClock
from autotune.inside.steering import Steering, loose_knobs
from autotune.measurement.run_mode import Epochs
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import KnobValue

JUST_SWITCHED = 3  # steps after a switch in which a failure is rather the config's than the epoch's
MAX_UNCOUNTED = 8  # of the first steps may call no model: another is called in others
STEPS_ALIKE = 4  # a step whose calls without gradients no recent step had holds a validation pass
TOKEN_DTYPES = {torch.int64, torch.int32}  # what embeddings take


@dataclass(frozen=True)
class Step:
    """What a finished step consisted of.

    Attributes:
        wait_s: Part of it in which the program waited for batches.
        tokens: Token ids that went into the model, 0 where its input is none.
    """

    samples: int
    wait_s: float
    tokens: int


@dataclass
class _Counts:
    """What happened since the last border."""

    batch_samples: int = 0
    forward_samples: int = 0
    batches: int = 0
    wait_s: float = 0.0
    tokens: int = 0
    calls_without_grad: int = 0
    root: Root | None = None  # the largest that was called with gradients


class StepTracker(Listener):
    """Runs in the program's main thread, inside the calls that the seams intercept.

    A border is where the training loader is asked for a batch after an optimizer step; for programs
    without a DataLoader, or where another thread asks it, the end of an optimizer step. Steps that
    a program makes by hand end where it comes back to its loader, its model or its next backward
    pass. At a border a subclass may wait as long as it likes: the program stands still there,
    between two steps.

    Args:
        setting: What the program starts under; None leaves it as it is.
        group: The processes that train together.
        epochs: How the program's epochs end.
    """

    def __init__(
        self, setting: AppliedConfig | None, group: Group, epochs: Epochs = Epochs.ENDLESS
    ) -> None:
        self._ends = EpochEnds(epochs)
        self.is_endless = self._ends.is_endless
        self.config_reads: Mapping[str, KnobValue] = {}
        self.seams = (
            SeamSet(self, setting.loader, loose_knobs(setting), group)
            if setting
            else SeamSet(self, target=None, group=group)
        )
        self.steering = Steering(self.seams)
        self.observer = Observer(self.seams, group)
        self._group = group
        self.feed: Feed | None = None
        self.samples_between_starts: int | None = None
        self.batches_per_step = 1
        self.loss: torch.Tensor | None = None
        self.steps = 0
        self.switched_at = 0  # steps; a rig is started under a config, or as written
        self._has_switched_beyond = False
        self._former_starts = 0  # of feeds that the program has left
        self._feed_steps = 0
        self._feed_samples = 0
        self._counts = _Counts()
        self._usual_calls = deque([0], maxlen=STEPS_ALIKE)
        self._stepped = False
        self._uncounted = 0
        self._adopted: dict[int, int] = {}  # which adoption was a training loader's last, by place
        self.forks = ForkGuard(self._forked)

    @abstractmethod
    def on_step_end(self, step: Step) -> None:
        """A step has ended."""

    @abstractmethod
    def observed(self) -> None:
        """At this border the first steps have told all that a profile holds."""

    def disturbed(self) -> None:
        """The program does something besides training in the present step."""

    def paused(self) -> None:
        """The program leaves its training loop, at the end of an epoch; no step is under way."""

    def resumed(self, begin_s: float) -> None:
        """It is back, in the loop that is its first step's; the new pass took so long to begin."""

    @property
    def clock(self) -> PartsClock | None:
        """Counts the parts of the present step, if anything does."""
        return None

    def program_ended(self, *, has_failed: bool = False) -> None:
        """The program has come to its end, or to an exception."""

    def stand_aside(self) -> None:
        """Let the program train as it is: another process is measured in place of this one."""
        self.forks.stand_aside()

    def take_ranks(self, group: Group) -> None:
        """Be one of several ranks that the program starts by itself, before it trains."""
        self._group = group
        self.observer.take_ranks(group)

    def _forked(self) -> None:
        """In a process that was forked off: whoever measures hears nothing of it."""
        self._stepped = False

    def before_batch(self, feed: Feed) -> None:
        """End the step that went before, if one was made since the last border."""
        self.seams.by_hand.look()
        if feed is not self.feed and not (self.observer.is_training(feed) and self._leads(feed)):
            return
        if self.observer.loader_thread:  # which this is: it may ask in the middle of a step
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
        """Count a batch of a training loader; others only disturb the block."""
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
        """Tell whether a feed is a training loader's, in the process that trains."""
        if self.forks.is_child:
            return False
        if not feed.handed:
            self._adopt(feed)
        return feed is self.feed or self.observer.is_training(feed)

    def starts_over(self, feed: Feed) -> bool:
        """A training loader starts over: code at the end of an epoch does not run in a rig."""
        return self._ends.starts_over(feed)

    def cuts(self, feed: Feed) -> bool:
        """In true epochs, end training where the program would, and what trains nothing soon."""
        if self.is_endless or self.forks.is_child or self.observer.loaders is None:
            return False
        return self._ends.cuts(feed, self.steps, trains=self.trains_on(feed))

    def epoch_ended(self, feed: Feed) -> None:  # noqa: ARG002
        """From here on there are more steps than the program planned: its schedules stand still."""
        self.hold_schedules()

    def pass_ended(self, feed: Feed) -> None:
        """What comes now, until the next pass begins, is no part of a step."""
        if feed is self.feed and not self.observer.loader_thread:
            self.paused()

    def hold_schedules(self) -> None:
        """Let schedules stand still; true epochs have the steps that they were planned for."""
        if self.is_endless:
            self.seams.scheduler.hold()

    def note_switch(self) -> None:
        """The config changes here."""
        self.switched_at = self.steps
        self._has_switched_beyond = self._ends.is_beyond

    @property
    def suspect(self) -> Epochs | None:  # type: ignore[override]
        """How epochs would have to end if these here are why the program fails now."""
        is_recent = self.steps - self.switched_at <= JUST_SWITCHED
        return self._ends.suspect(
            self.steps, has_just_switched=self._has_switched_beyond and is_recent
        )

    @property
    def starts(self) -> int:
        """How often iteration over the training data has begun, the program's own passes too."""
        return self._former_starts + (self.feed.starts if self.feed is not None else 0)

    def forward_called(self, root: Root, args: tuple[Any, ...]) -> None:
        """Count samples at the largest model that trains, for programs without a DataLoader.

        A model that collects experience without gradients may be trained by calls of its parts.
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

    def loss_seen(self, loss: torch.Tensor) -> None:
        """Keep the last loss without looking at it: that would sync the device."""
        if loss.numel() == 1:
            self.loss = loss.detach()

    def optimizer_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the step, if it is one of the optimizer's whose steps count."""
        if self.forks.is_child:
            self.forks.tell_step()
        elif self.observer.optimizer_stepped(optimizer):
            self.step_made()

    def stepped_by_hand(self) -> None:
        """Note a step that the program has made by itself."""
        if self.forks.is_child:
            self.forks.tell_step()
            return
        self.observer.stepped_by_hand()
        self.step_made()

    def step_made(self) -> None:
        """Count a step; without a DataLoader this is the border."""
        self.steps += 1
        self._stepped = True
        if self.observer.loaders is None:
            self._counts = _Counts()  # the first step's own: what came before it was set-up
        elif not self.observer.loaders or self.observer.loader_thread:
            self._border()

    def _take_up(self, feed: Feed) -> None:
        """Follow the pass that the program has begun."""
        if self._feed_steps > 1 and self.is_endless:
            self.samples_between_starts = self._feed_samples
        if self.feed is not None and not self.is_endless:
            self._former_starts += self.feed.starts
        self.feed, self._feed_steps, self._feed_samples = feed, 0, 0

    def _adopt(self, feed: Feed) -> None:
        """Know the training loader again that the program has built anew for an epoch.

        Of several alike it is in the place of the one that was built first.
        """
        loaders = self.observer.loaders
        if self.is_endless or not loaders or not feed.wants_gradients:
            return
        facts = self.seams.loader.facts
        its = known_by(facts, feed)
        alike = [n for n, own in enumerate(loaders) if replace(facts(own), ordinal=0) == its]
        if alike and not any(feed.loader is own for own in loaders):
            place = min(alike, key=lambda n: self._adopted.get(n, 0))
            self._adopted[place] = 1 + max(self._adopted.values(), default=0)
            self.observer.loaders = (*loaders[:place], feed.loader, *loaders[place + 1 :])

    def _leads(self, feed: Feed) -> bool:
        loaders = self.observer.loaders
        return not loaders or feed.loader is loaders[0]

    def _border(self) -> None:
        counts = self._counts
        is_usual = counts.calls_without_grad in self._usual_calls
        self._usual_calls.append(counts.calls_without_grad)
        self.batches_per_step = max(1, counts.batches)
        self._counts, self._stepped = _Counts(), False
        is_ahead = not self.observer.loaders or self.observer.loader_thread
        samples = counts.forward_samples if is_ahead else counts.batch_samples
        if not self.observer.loaders and not self.seams.forward.roots:
            samples = 1  # bare tensors: a step is all that can be counted
        self._feed_steps += 1
        self._feed_samples += samples
        if not is_usual:
            self.disturbed()  # a validation pass; a teacher model is called alike in every step
        if self.observer.is_complete:
            self.on_step_end(Step(samples, counts.wait_s, counts.tokens))
            self.seams.forward.calls.clear()
            return
        if not samples and is_ahead:
            self._uncounted += 1
            samples = int(self._uncounted > MAX_UNCOUNTED)  # a step is all that can be counted
        if samples:
            self.observer.step_ended(samples, self.batches_per_step)
        if self.observer.is_complete:
            if self.seams.loader.misses_target:
                raise LookupError(self.seams.loader.describe_missing_target())
            self._insist_on_one_group()
            self.observed()

    def _insist_on_one_group(self) -> None:
        """Ranks that do not know of each other would each train a model of their own."""
        if self.seams.distribution.has_ranks:
            return
        size = distributed.get_world_size() if distributed.is_initialized() else 1
        if size != self._group.world_size:
            raise RuntimeError(_no_group(size, self._group))


def _no_group(size: int, group: Group) -> str:
    """Say that processes do not train together, and what to do."""
    if group.world_size == 1:
        return (
            f"the program trains in a group of {size} processes, of which autotune has seen one "
            "start. Let autotune start them: autotune search -- torchrun --nproc-per-node "
            f"{size} train.py"
        )
    trains = f"the program trains in groups of {size} where {group.world_size} ranks were started"
    if not group.started_by:
        return f"{trains}: it does not take its ranks from torchrun"
    return (
        f"{trains} by {group.started_by}: its processes train models of their own, or meet those "
        "of other machines. Search it with one such process, or have each call "
        "init_process_group() with the rank and the number of all"
    )
