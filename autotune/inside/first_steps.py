"""Find out from the first steps which optimizer and which loaders train the program."""

from __future__ import annotations

from threading import get_ident
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from autotune.inside.data.feed import Feed
from autotune.inside.data.nested import first_tensor
from autotune.inside.ranks.group import ALONE, Group
from autotune.inside.seams.optimizer import optimizer_facts
from autotune.program.profile import OptimizerFacts

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

    The steps that count are those of the first optimizer, or those that the program makes by hand.
    The observation starts again if an optimizer steps after steps by hand, because those were
    preparation. It also starts again if another optimizer continues while the first one has
    stopped: the first one then made a trial step or belonged to another stage.

    A loader trains if it handed out a batch with gradients enabled between the first and the second
    step and again before the third. So loaders that the program reads to show a sample or to
    validate do not count.

    Attributes:
        group: Set anew, before the program trains, where it starts further ranks itself.
        is_complete: Whether enough steps were seen: four, or one if the program's steps are slow.
            Steps count for this once it is known which loaders train. It then stays so.
        lead: The optimizer whose steps count; None before the first step, and for steps by hand.
        optimizers: Facts of each optimizer that stepped, by its id.
        loaders: Those that train; None until the third step.
        loads_on: Device type of the first tensor of the batches.
        loader_thread: Whether another thread than the one that steps asks for the batches.
    """

    def __init__(self, group: Group = ALONE) -> None:
        self.group = group
        self.is_complete = False  # asked in each step, so no property
        self.optimizers: dict[int, OptimizerFacts] = {}
        self.loader_thread = False
        self.loads_on = "cpu"
        # The pass that handed out the last batch, and how many it did
        self._pass: tuple[Feed | None, int] = None, 0
        # The thread that asked each loader last, and the steps before which it handed out a batch
        self._fed: dict[DataLoader[Any], tuple[int, set[int]]] = {}
        self._begin(lead=None)

    def _begin(self, lead: Optimizer | None) -> None:
        self.lead = lead
        self.loaders: tuple[DataLoader[Any], ...] | None = None
        self._fed = {loader: (thread, set()) for loader, (thread, _) in self._fed.items()}
        self._made: list[tuple[float, int]] = []  # steps: when, and batches of the pass until then
        self._steps_of_another: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self.batches_per_step: list[int] = []

    @property
    def reads_ahead(self) -> bool:
        """Whether the program takes batches from its loader before it needs them.

        By the third step it has then taken more than the batches of three steps.
        """
        (_, second), (_, third) = self._made[1:3]
        return 0 < 3 * (third - second) < third

    def batch_handed_out(self, feed: Feed, batch: Any) -> None:
        """Note a batch; batches without gradients are ignored, because they do not train."""
        if self.is_complete or not torch.is_grad_enabled():
            return
        if self.loaders is None:
            tensor = first_tensor(batch)
            self.loads_on = "cpu" if tensor is None else tensor.device.type
            _, steps = self._fed.get(feed.loader, (0, set()))
            if len(self._made) not in steps:  # the last loader is the one that began last to feed
                self._fed.pop(feed.loader, None)
            self._fed[feed.loader] = feed.thread, {*steps, len(self._made)}
        last, batches = self._pass
        self._pass = feed, batches + 1 if feed is last else 1

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
        if not self.is_complete and id(optimizer) not in self.optimizers:
            self.optimizers[id(optimizer)] = optimizer_facts(optimizer)
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
            and any(feed.loader is one for one in self.loaders)
        )

    def step_ended(self, batches: int = 1) -> None:
        """Note a whole step and how many batches it took."""
        self.batches_per_step.append(batches)
        wanted = OBSERVED_STEPS
        # Step times of several ranks differ, but all must end the observation at the same step
        if self.group.world_size == 1 and len(self._made) == 3:
            (first, _), (second, _), (third, _) = self._made
            if min(second - first, third - second) > SLOW_STEP_S:
                wanted = OBSERVED_SLOW_STEPS
        self.is_complete = self.loaders is not None and len(self.batches_per_step) >= wanted
        if self.is_complete:
            self._pass = None, 0  # hold nothing that the program may drop

    def _step_made(self) -> None:
        if len(self._made) >= 3:
            return
        self._made.append((perf_counter(), self._pass[1]))
        if len(self._made) == 3:
            # If no loader fed both steps, take the last one that fed the third, else one that
            # another thread reads: it may have taken its batches long before these steps.
            both = [loader for loader, (_, steps) in self._fed.items() if {1, 2} <= steps]
            third = [loader for loader, (_, steps) in self._fed.items() if 2 in steps]
            foreign = [one for one, (thread, _) in self._fed.items() if thread != get_ident()]
            self.loaders = tuple(both or third[-1:] or foreign)
            self.loader_thread = any(loader in foreign for loader in self.loaders)
            self._fed.clear()
