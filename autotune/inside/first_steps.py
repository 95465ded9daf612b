"""Find out from the first steps which optimizer and which loaders train the program."""

from __future__ import annotations

from statistics import median
from threading import get_ident
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from autotune.inside.data.feed import Feed
from autotune.inside.ranks.group import ALONE, Group

OBSERVED_STEPS = 4
SLOW_STEP_S = 0.5
OBSERVED_SLOW_STEPS = 1  # after the three steps that tell which loaders train
# After more than this many steps of another optimizer without one of the lead, the program trains
# with that other one. The limit is low during the observation, because programs make trial steps
# at their start, and high afterwards, because optimizers that take turns must not change places.
MAX_STEPS_OF_ANOTHER = 50
MAX_FIRST_STEPS_OF_ANOTHER = 3


class FirstSteps:
    """Watches the program's first batches and steps until it is clear what trains.

    ``Observer`` extends it, and ``StepTracker`` calls it: for steps in the program's main thread,
    for batches in the thread that asks for them.

    The steps that count are those of the first optimizer, or those that the program makes by hand.
    The observation starts again if an optimizer steps after steps by hand, because those were
    preparation. It also starts again if another optimizer continues while the first one has
    stopped: the first one then made a trial step or belonged to another stage.

    A loader trains if it handed out a batch with gradients enabled between the first and the second
    step and again before the third. So loaders that the program reads to show a sample or to
    validate do not count.

    Args:
        group: The processes that train together.

    Attributes:
        group: The processes that train together; set anew, before the program trains, where it
            starts further ranks itself.
        is_complete: Whether enough steps were seen: four, or one if the program's steps are slow.
            Steps count for this once it is known which loaders train. It then stays so.
        lead: The optimizer whose steps count; None before the first step, and if the program makes
            its steps by hand.
        loaders: The loaders that train; None until the third step, empty for a program without a
            DataLoader.
        loader_thread: Whether another thread than the one that steps asks for the batches.
    """

    def __init__(self, group: Group = ALONE) -> None:
        self.group = group
        self.is_complete = False  # asked in each step, so no property
        self._since_step: list[DataLoader[Any]] = []
        self._threads: dict[DataLoader[Any], int] = {}
        self._feed: Feed | None = None
        self.loader_thread = False
        self._batches = 0
        self._begin(lead=None)

    def _begin(self, lead: Optimizer | None) -> None:
        self.lead = lead
        self._steps = 0
        self._steps_of_another: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._before: list[DataLoader[Any]] = []
        self._batches_per_step: list[int] = []
        self._batches_by_step: list[int] = []
        self._stepped_at: list[float] = []
        self.loaders: tuple[DataLoader[Any], ...] | None = None

    @property
    def _is_slow(self) -> bool:
        """Whether each of the first steps took longer than ``SLOW_STEP_S``.

        Always False with several ranks: their step times differ, but all must end the observation
        at the same step to synchronize.
        """
        if self.group.world_size > 1 or len(self._stepped_at) < 3:
            return False
        first, second, third = self._stepped_at[:3]
        return min(second - first, third - second) > SLOW_STEP_S

    @property
    def batches_per_step(self) -> int:
        """Batches between the second and the third step, at least 1."""
        _, second, third = self._batches_by_step[:3]
        return max(1, third - second)

    @property
    def reads_ahead(self) -> bool:
        """Whether the program takes batches from its loader before it needs them.

        By the third step it has then taken more than the batches of three steps.
        """
        _, second, third = self._batches_by_step[:3]
        per_step = third - second
        return per_step > 0 and third > 3 * per_step

    def batch_handed_out(self, feed: Feed) -> None:
        """Note a batch; batches without gradients are ignored, because they do not train."""
        if self.is_complete or not torch.is_grad_enabled():
            return
        if feed.loader not in self._since_step:
            self._since_step.append(feed.loader)
        self._threads[feed.loader] = feed.thread
        self._batches = self._batches + 1 if feed is self._feed else 1
        self._feed = feed

    def optimizer_stepped(self, optimizer: Optimizer) -> bool:
        """Note a step of an optimizer; return whether its steps are the ones that count.

        The first optimizer to step takes the lead. Another one takes it over when it has made
        enough steps since the lead's last one; once the observation is complete, what was observed
        stays.
        """
        if self.is_complete and optimizer is self.lead:
            if self._steps_of_another:
                self._steps_of_another.clear()
            return True
        if self.lead is None or self._has_taken_over(optimizer):
            if self.is_complete:  # the profile was sent already, but its steps still count
                self.lead = optimizer
            else:
                self._begin(optimizer)
        if optimizer is not self.lead:
            return False
        self._steps_of_another.clear()
        self._step_made()
        return True

    def _has_taken_over(self, optimizer: Optimizer) -> bool:
        """Count a step of an optimizer; return whether it now trains instead of the lead.

        Optimizers that take turns, such as those of a GAN, stay with one lead as long as the number
        of steps between two of the lead's steps is below the limit.
        """
        if optimizer is self.lead:
            return False
        steps = self._steps_of_another.get(optimizer, 0) + 1
        self._steps_of_another[optimizer] = steps
        return steps > (MAX_STEPS_OF_ANOTHER if self.is_complete else MAX_FIRST_STEPS_OF_ANOTHER)

    def stepped_by_hand(self) -> None:
        """Note a step that the program made without an optimizer."""
        if not self.is_complete:
            self._step_made()

    def is_training(self, feed: Feed) -> bool:
        """Return whether a feed belongs to a loader that trains; False while that is unknown."""
        return (
            self.loaders is not None
            and feed.wants_gradients
            and any(feed.loader is own for own in self.loaders)
        )

    def step_ended(self, batches: int = 1) -> None:
        """Note a whole step and how many batches it took."""
        self._batches_per_step.append(batches)
        wanted = OBSERVED_SLOW_STEPS if self._is_slow else OBSERVED_STEPS
        self.is_complete = self.loaders is not None and len(self._batches_per_step) >= wanted
        if self.is_complete:  # hold nothing that the program may drop
            self._before, self._since_step, self._feed = [], [], None

    @property
    def batches_per_whole_step(self) -> float:
        """Median number of batches that a step took."""
        return median(self._batches_per_step)

    def _step_made(self) -> None:
        self._steps += 1
        if self._steps <= 3:
            self._stepped_at.append(perf_counter())
        self._batches_by_step.append(self._batches)
        if self._steps == 3:
            # If no loader fed both steps, take the last one that fed the third, else one that
            # another thread reads: it may have taken its batches long before these steps.
            both = [own for own in self._since_step if own in self._before]
            foreign = [own for own, thread in self._threads.items() if thread != get_ident()]
            self.loaders = tuple(both or self._since_step[-1:] or foreign)
            self.loader_thread = any(own in foreign for own in self.loaders)
            self._threads.clear()
        self._before, self._since_step = self._since_step, []
