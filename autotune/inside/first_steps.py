"""First steps: who makes them, which loaders feed them, and when enough of them were seen."""

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
from autotune.rig.wire import SLOW_STEP_S

OBSERVED_STEPS = 4
OBSERVED_SLOW_STEPS = 1  # after the three that tell which loaders train
# Steps of another optimizer without one of the first: the program has gone on to train with that
# one. While it is being observed this shows sooner: a trial step at the start, of a model's own.
MAX_STEPS_OF_ANOTHER = 50
MAX_FIRST_STEPS_OF_ANOTHER = 3


class FirstSteps:
    """Watches batches and steps.

    Steps are those of the first optimizer, or those that the program makes by hand. An optimizer
    that steps later begins the observation anew: what was made by hand before was a preparation.
    So does one that goes on alone while the first one has stopped: that was a trial, or another
    stage.

    The loaders that train are those that handed out a batch, with gradients enabled, between the
    first and the second step and again before the third: what the program iterates to look at a
    sample or to validate is not among them. None means a program without a DataLoader.

    Attributes:
        lead: The optimizer whose steps count, None where the program makes them by hand.
        loader_thread: Another thread than the one that steps asks for the batches.
    """

    def __init__(self, world_size: int = 1) -> None:
        self._world_size = world_size
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
        self._samples: list[int] = []
        self._batches_per_step: list[int] = []
        self._batches_by_step: list[int] = []
        self._stepped_at: list[float] = []
        self.loaders: tuple[DataLoader[Any], ...] | None = None

    @property
    def is_complete(self) -> bool:
        """Enough steps were seen."""
        wanted = OBSERVED_SLOW_STEPS if self._is_slow else OBSERVED_STEPS
        return self.loaders is not None and len(self._samples) >= wanted

    @property
    def _is_slow(self) -> bool:
        """Every step is long; ranks, which must agree when they meet, do not ask."""
        if self._world_size > 1 or len(self._stepped_at) < 3:
            return False
        first, second, third = self._stepped_at[:3]
        return min(second - first, third - second) > SLOW_STEP_S

    @property
    def samples_per_step(self) -> float:
        """The mean over the whole steps that were seen."""
        return sum(self._samples) / len(self._samples)

    @property
    def batches_per_step(self) -> int:
        """Batches between the second and the third step, at least 1."""
        _, second, third = self._batches_by_step[:3]
        return max(1, third - second)

    @property
    def reads_ahead(self) -> bool:
        """More batches were out at the third step than three steps take."""
        _, second, third = self._batches_by_step[:3]
        per_step = third - second
        return per_step > 0 and third > 3 * per_step

    def batch_handed_out(self, feed: Feed) -> None:
        """Note a batch."""
        if not torch.is_grad_enabled():
            return
        if feed.loader not in self._since_step:
            self._since_step.append(feed.loader)
        self._threads[feed.loader] = feed.thread
        self._batches = self._batches + 1 if feed is self._feed else 1
        self._feed = feed

    def optimizer_stepped(self, optimizer: Optimizer) -> bool:
        """Note a step; return whether it belongs to the optimizer whose steps count."""
        if self.lead is None or self._has_taken_over(optimizer):
            if self.is_complete:  # too late to observe it, not to count it
                self.lead = optimizer
            else:
                self._begin(optimizer)
        if optimizer is not self.lead:
            return False
        self._steps_of_another.clear()
        self._step_made()
        return True

    def _has_taken_over(self, optimizer: Optimizer) -> bool:
        """Count a step; tell whether the program trains with this optimizer from now on."""
        if optimizer is self.lead:
            return False
        steps = self._steps_of_another.get(optimizer, 0) + 1
        self._steps_of_another[optimizer] = steps
        return steps > (MAX_STEPS_OF_ANOTHER if self.is_complete else MAX_FIRST_STEPS_OF_ANOTHER)

    def stepped_by_hand(self) -> None:
        """Note a step that no optimizer made."""
        self._step_made()

    def is_training(self, feed: Feed) -> bool:
        """Tell whether a feed's loader drives steps, by what is known so far."""
        return (
            self.loaders is not None
            and feed.wants_gradients
            and any(feed.loader is own for own in self.loaders)
        )

    def step_ended(self, samples: int, batches: int = 1) -> None:
        """Note the samples of a whole step, and the batches that were taken for it."""
        self._samples.append(samples)
        self._batches_per_step.append(batches)

    @property
    def batches_per_whole_step(self) -> float:
        """Batches that were taken for a step, as a rule."""
        return median(self._batches_per_step)

    @property
    def reads_no_loader(self) -> bool:
        """No DataLoader has handed out a batch."""
        return self._feed is None

    def _step_made(self) -> None:
        self._steps += 1
        if self._steps <= 3:
            self._stepped_at.append(perf_counter())
        self._batches_by_step.append(self._batches)
        if self._steps == 3:
            both = [own for own in self._since_step if own in self._before]
            foreign = [own for own, thread in self._threads.items() if thread != get_ident()]
            self.loaders = tuple(both or self._since_step[-1:] or foreign)
            self.loader_thread = any(own in foreign for own in self.loaders)
            self._threads.clear()
        self._before, self._since_step = self._since_step, []
