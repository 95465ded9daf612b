"""Micro-batches: which of them lies where in its group, and which groups come to a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class EpochShape:
    """What an epoch of the training loader consists of.

    Attributes:
        batches: None where that is unknown: all groups are whole then, also across epochs.
        size: Samples in a batch, None where batches differ: all weigh the same then.
        last: Samples in the last batch.
    """

    batches: int | None = None
    size: int | None = None
    last: int | None = None

    def samples(self, number: int) -> int:
        """Samples in a batch by its number, in proportion."""
        if self.size is None or self.last is None:
            return 1
        return self.last if number == self.batches else self.size


class Groups:
    """Follows the micro-batches of a training loader through the program's loop.

    A batch that is handed out counts from the first thing on that the program does to train on it:
    a program may read the same data to evaluate. What it would do to a whole batch, it does to a
    group: where it makes no step with one micro-batch, as for a loss that is not finite, the whole
    group is left out.

    Args:
        drop: Clears the gradients that were gathered, as the program would.

    Attributes:
        gathers: Gradients of the present group have been computed, and no step was made of them.
        has_gradients: So have those of the present micro-batch, since its last step if it had one.
        is_last: The present micro-batch is the last of its group.
        is_left_out: The present group comes to no step.
        share: Of the present micro-batch in its group's samples.
    """

    def __init__(self, drop: Callable[[], None]) -> None:
        self._drop = drop
        self._steps = 1
        self._next: tuple[int, EpochShape, object] | None = None
        self._iteration: object = None
        self._number = self._before = 0
        self._counts_on = False
        self._stepped: set[int] = set()
        self.gathers = self.has_gradients = self.is_left_out = False
        self.is_last, self.share = True, 1.0

    @property
    def steps(self) -> int:
        """Micro-batches in a group."""
        return self._steps

    def regroup(self, steps: int) -> None:
        """Make groups of so many micro-batches from here on."""
        if steps != self._steps:
            self._abandon()
            self.release()
            self._number = self._before = 0
            self._next, self._steps = None, steps

    def hand_out(self, number: int, epoch: EpochShape, iteration: object = None) -> None:
        """A training loader hands out a micro-batch, the *number*-th of its epoch, from 1."""
        self._next = number, epoch, iteration

    def take(self) -> None:
        """The program begins to train on the micro-batch that it was handed last."""
        if self._next is None:
            return
        (number, epoch, self._iteration), self._next = self._next, None
        is_next = number in {1, self._number, self._number + 1}  # of a new epoch, again, or of this
        follows = is_next and bool(self._stepped)
        position = self._place(number, epoch)
        if position == 0:
            self._abandon()
        elif not follows:
            self.leave_out()
        self._stepped.clear()
        self.has_gradients = False

    def gradients_come(self) -> None:
        """A backward pass begins."""
        self.gathers = self.has_gradients = True

    def steps_again(self, optimizer: object) -> bool:
        """Tell whether an optimizer has made, or held back, its step for this micro-batch."""
        return id(optimizer) in self._stepped

    def stepped(self, optimizer: object, *, is_real: bool) -> None:
        """An optimizer has made its step, or held it back."""
        self._stepped.add(id(optimizer))
        self.has_gradients = False
        self.gathers = self.gathers and not is_real

    def leave_out(self) -> None:
        """The program has made no step with one of the group's micro-batches."""
        self._abandon()
        self.is_left_out = True

    def end(self, iteration: object = None) -> None:
        """The program asks an iteration for nothing more: a group within an epoch ends with it."""
        if iteration is not self._iteration:
            return  # it read data, and trained on none
        if not self._counts_on:
            self._abandon()
        self._next = None
        self.release()

    def release(self) -> None:
        """What the program trains on from here on is no micro-batch, until it is handed one."""
        self.is_last, self.is_left_out, self.share = True, False, 1.0

    def _place(self, number: int, epoch: EpochShape) -> int:
        """Say where in its group a micro-batch lies, by the numbers of it and of the last one."""
        is_again = number == self._number and epoch.batches != 1  # one batch for many steps
        self._counts_on = is_again or epoch.batches is None
        if is_again:
            self._before += 1
        elif not self._counts_on:
            self._before = 0
        elif number <= self._number:
            self._before += self._number
        self._number = number
        position = (self._before + number - 1) % self._steps
        if self._counts_on:
            self.share, self.is_last = 1 / self._steps, position == self._steps - 1
        else:
            first = number - position
            last = min(first + self._steps - 1, epoch.batches or 1)
            samples = [epoch.samples(n) for n in range(first, last + 1)]
            self.share, self.is_last = epoch.samples(number) / sum(samples), number == last
        return position

    def _abandon(self) -> None:
        """Forget what was gathered for a step that does not come."""
        if self.gathers:
            self._drop()
        self.gathers = self.has_gradients = self.is_left_out = False
