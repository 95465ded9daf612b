"""Place micro-batches in the groups that make one optimizer step (gradient accumulation).

This module only counts; ``AccumulationSeam`` acts on what it finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class EpochShape:
    """The number and the sizes of batches in an epoch of the training loader.

    Attributes:
        batches: Number of batches; None if unknown. Groups then all have the full size and continue
            from one epoch into the next.
        size: Samples in a batch; None if batches differ. All batches then have the same weight.
        last: Samples in the last batch.
    """

    batches: int | None = None
    size: int | None = None
    last: int | None = None

    def samples(self, number: int) -> int:
        """Return the weight of the *number*-th batch: its samples, or 1 if sizes are unknown."""
        if self.size is None or self.last is None:
            return 1
        return self.last if number == self.batches else self.size


class Groups:
    """Follows the micro-batches of a training loader through the program's loop.

    ``AccumulationSeam`` calls it from the calls that it intercepts: handing out a batch, backward,
    ``step`` and ``zero_grad``, in the thread in which the program makes them. A config that changes
    the number of micro-batches calls ``regroup()`` between two steps.

    A batch counts from the moment that the program begins to train on it, not when it is handed
    out, because a program may also read the training data to evaluate. What the program does to a
    whole batch is done to the whole group: if it makes no step with one micro-batch, for example
    because the loss is not finite, the whole group is left out.

    Attributes:
        steps: Number of micro-batches in a group; 1 means that nothing is accumulated.
        waiting: The optimizers whose step of the present group was held back, by their ids.
        stepped_by: Ids of those whose step was made or held back for the present micro-batch.
        has_gradients: Whether the present micro-batch has gradients that no step, real or held
            back, has followed.
        is_last: Whether the present micro-batch is the last one of its group.
        is_left_out: Whether the present group makes no step.
        share: The present micro-batch's share of its group's samples, 0 to 1.
    """

    def __init__(self, drop: Callable[[], None]) -> None:
        self._drop = drop
        self.steps = 1
        self._next: tuple[int, EpochShape, object] | None = None
        self._taken: tuple[int, object] = (0, None)  # number and iteration
        self._before = 0
        self._counts_on = False
        self.waiting: dict[int, Any] = {}
        self.stepped_by: set[int] = set()
        self.has_gradients = self.is_left_out = False
        self.is_last, self.share = True, 1.0

    def regroup(self, steps: int) -> None:
        """Use groups of *steps* micro-batches from here on; accumulated gradients are dropped.

        Nothing changes if groups already have this size.
        """
        if steps != self.steps:
            self._abandon()
            self.release()
            self._taken = 0, self._taken[1]
            self._before = 0
            self._next, self.steps = None, steps

    def hand_out(self, number: int, epoch: EpochShape, iteration: object = None) -> None:
        """Note that a training loader hands out a micro-batch."""
        self._next = number, epoch, iteration

    def take(self) -> None:
        """Note that the program begins to train on the micro-batch that was handed out last.

        Further calls for one micro-batch change nothing. If the previous micro-batch was skipped,
        or the program made no step with it, the group is left out.
        """
        if self._next is None:
            return
        (number, epoch, iteration), self._next = self._next, None
        last = self._taken[0]
        # The first of a new epoch, the same one again, or the next one of this epoch.
        is_next = number in {1, last, last + 1}
        follows = is_next and bool(self.stepped_by)
        place = self._place(number, epoch)
        self._taken = number, iteration
        if place == 0:
            self._abandon()
        elif not follows:
            self.leave_out()
        self.stepped_by.clear()
        self.has_gradients = False

    def stepped(self, optimizer: Any, *, is_real: bool) -> None:
        """Note that an optimizer has made its step (*is_real*) or that the step was held back."""
        self.stepped_by.add(id(optimizer))
        if is_real:
            self.waiting.pop(id(optimizer), None)
        else:
            self.waiting[id(optimizer)] = optimizer
        self.has_gradients = False

    def leave_out(self) -> None:
        """Leave out the present group: the program made no step with one of its micro-batches."""
        self._abandon()
        self.is_left_out = True

    def end(self, iteration: object = None) -> None:
        """Note that the program asks a pass for nothing more; an unfinished group is dropped.

        Groups of data without a length are kept, because they continue in the next epoch. A pass
        that the program did not train on is ignored.
        """
        if iteration is not self._taken[1]:
            return
        if not self._counts_on:
            self._abandon()
        self._next = None
        self.release()

    def release(self) -> None:
        """Let the program's steps count as usual until the next micro-batch is handed out."""
        self.is_last, self.is_left_out, self.share = True, False, 1.0

    def _place(self, number: int, epoch: EpochShape) -> int:
        """Set ``share`` and ``is_last`` for a micro-batch; return its place in the group, from 0.

        In an epoch of known length, groups begin anew with each epoch and the last one may be
        smaller. Groups continue across epochs if the length is unknown, or if the program trains on
        one batch several times: the repetitions then count as micro-batches.
        """
        # One batch used for many steps. With one batch per epoch, its number is always 1.
        previous = self._taken[0]
        is_again = number == previous and epoch.batches != 1
        self._counts_on = is_again or epoch.batches is None
        if is_again:
            self._before += 1
        elif not self._counts_on:
            self._before = 0
        elif number <= previous:
            self._before += previous
        position = (self._before + number - 1) % self.steps
        if self._counts_on:
            self.share, self.is_last = 1 / self.steps, position == self.steps - 1
        else:
            first = number - position
            last = min(first + self.steps - 1, epoch.batches or 1)
            samples = [epoch.samples(n) for n in range(first, last + 1)]
            self.share, self.is_last = epoch.samples(number) / sum(samples), number == last
        return position

    def _abandon(self) -> None:
        if self.waiting or self.has_gradients:
            self._drop()
        self.waiting.clear()
        self.has_gradients = self.is_left_out = False
