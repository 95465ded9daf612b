"""Epoch: what one epoch of the program consists of, training steps and everything else.

A short run sees epochs whose passes may be cut (``EpochSeen``). With the speed of the training loop
they make up a whole epoch, see ``breakdown``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean

from autotune.measurement.interval import Interval


@dataclass(frozen=True)
class RunLength:
    """How long a program trains, as its trainer or its own code says.

    Attributes:
        epochs: Number of epochs; None if unknown.
        steps: Number of optimizer steps, where the program counts them instead of epochs.
        where: Where that is said, such as ``train.py:57: for epoch in range(epochs)``.
        evaluates_every: Epochs from one evaluation to the next, where a library's trainer evaluates
            by its own count; else 1.
        saves_every: The same of checkpoints.
        batches: Batches after which the program leaves each training pass; None if it leaves none
            early, or that is unknown.
        unknown: Why the number of epochs cannot be told although the code was read, as a clause;
            empty if nothing speaks against what a flag says.
    """

    epochs: float | None = None
    where: str = ""
    steps: float | None = None
    evaluates_every: float = 1.0
    saves_every: float = 1.0
    batches: float | None = None
    unknown: str = ""

    def __str__(self) -> str:
        noun = "epoch" if self.epochs == 1 else "epochs"
        count = f"{self.epochs:g} {noun}" if self.steps is None else f"{self.steps:,.0f} steps"
        return f"{count} ({self.where})"


@dataclass(frozen=True)
class OtherPass:
    """One pass of the program over a loader that trains nothing, such as an evaluation.

    Attributes:
        loader: By which the loader is told from others.
        start_s: Seconds from its beginning to the first batch, and those that its workers took to
            end, if it was cut.
        seconds: Seconds from then to its end.
        batches: Batches that the program got.
        is_cut: Whether autotune ended it.
        length: Batches of a whole pass, if it was cut; None if that is unknown.
        after: Batches of the training pass that came before it, if it came in its middle; else 0.
    """

    loader: str
    start_s: float
    seconds: float
    batches: int
    is_cut: bool = False
    length: int | None = None
    after: int = 0

    def times(self, factor: float) -> OtherPass:
        """Return the pass with its seconds multiplied by a factor."""
        return replace(self, start_s=factor * self.start_s, seconds=factor * self.seconds)

    @property
    def is_within(self) -> bool:
        """Whether it came in the middle of a training pass."""
        return self.after > 0

    @property
    def whole_s(self) -> float:
        """Seconds of the whole pass, estimated if it was cut."""
        share = self.batches / self.length if self.length else 1.0
        return self.start_s + self.seconds / max(share, 1e-9)


@dataclass(frozen=True)
class EpochSeen:
    """One epoch of a short run: from the beginning of a training pass to that of the next.

    Attributes:
        steps: Optimizer steps.
        batches: Batches of the passes that trained.
        start_s: Seconds from the beginning of these passes to their first batches, and those that
            their workers took to end, if they were cut.
        steps_s: Seconds from then to their ends, without what follows.
        passes: The passes that trained nothing.
        computing_s: Seconds of computing without gradients outside all passes.
        saving_s: Seconds of saving between the training passes.
        saving_within_s: Seconds of saving in their middle.
        saved_after: Batches of the training pass before each of these.
        saves: How often the program saved.
        rest_s: Seconds of everything else.
        is_cut: Whether autotune ended a training pass.
        length: Batches of a whole training pass, if it was cut; None if that is unknown.
        is_last: Whether the program ended with it.
        compiles: Whether torch.compile worked in it, which takes long, and once.
    """

    steps: int
    batches: int
    start_s: float
    steps_s: float
    passes: tuple[OtherPass, ...] = ()
    computing_s: float = 0.0
    saving_s: float = 0.0
    saving_within_s: float = 0.0
    saved_after: tuple[int, ...] = ()
    saves: int = 0
    rest_s: float = 0.0
    is_cut: bool = False
    length: int | None = None
    is_last: bool = False
    compiles: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether nothing was cut."""
        return not self.is_cut and not any(p.is_cut for p in self.passes)

    @property
    def between_s(self) -> float:
        """Seconds of evaluation after the training pass."""
        return self.computing_s + sum(p.whole_s for p in self.passes if not p.is_within)

    @property
    def within_s(self) -> float:
        """Seconds of evaluation in the middle of the training pass, as far as it went."""
        return sum(p.whole_s for p in self.passes if p.is_within)

    @property
    def evaluated_after(self) -> tuple[int, ...]:
        """Batches of the training pass before each evaluation in its middle."""
        return tuple(sorted({p.after for p in self.passes if p.is_within}))

    @property
    def evaluation_s(self) -> float:
        """Seconds of evaluation in a whole epoch, estimated where passes were cut."""
        found = self.evaluated_after
        times = times_per_pass([self], [found]).estimate / len(found) if found else 0.0
        return self.between_s + times * self.within_s

    @property
    def seconds(self) -> float:
        """Seconds of the epoch, with its training pass as far as it went and whole evaluation."""
        return self.start_s + self.steps_s + self.evaluation_s + self.saving_s + self.rest_s

    @property
    def times(self) -> float:
        """A whole training pass over the part of it that was seen."""
        return self.length / self.batches if self.length else 1.0

    def evaluation_share(self, loop_s: float | None) -> float:
        """Return the share of a whole epoch that evaluation takes, 0 to 1.

        Args:
            loop_s: Seconds of a whole training pass; None takes it from this epoch, whose steps may
                be slower than later ones.
        """
        training_s = self.start_s + self.times * self.steps_s if loop_s is None else loop_s
        own_s = self.evaluation_s
        return own_s / (training_s + own_s + self.saving_s + self.rest_s)

    def with_passes_over(self, loader: str, factor: float) -> EpochSeen:
        """Return the epoch with the seconds of passes over a loader multiplied by a factor."""
        passes = (p.times(factor) if p.loader == loader else p for p in self.passes)
        return replace(self, passes=tuple(passes))

    def within(self, length: RunLength) -> EpochSeen:
        """Return the epoch as it is in a training of this length.

        A library's trainer evaluates and saves after each short epoch, but may do so less often
        when it trains. A training that counts its steps may end before its first pass does.
        """
        evaluates, saves = 1 / length.evaluates_every, 1 / length.saves_every
        ends = [] if self.length is None else [self.length]
        if self.is_cut and length.batches is not None:
            ends.append(max(self.batches, math.ceil(length.batches)))
        if ends and length.steps is not None:
            ends.append(math.ceil(length.steps * self.batches / self.steps))
        batches = min(ends, default=None)
        return replace(
            self,
            length=batches,
            passes=tuple(p.times(evaluates) for p in self.passes),
            computing_s=evaluates * self.computing_s,
            saving_s=saves * self.saving_s,
            saving_within_s=saves * self.saving_within_s,
        )


def times_per_pass(epochs: Sequence[EpochSeen], places: Sequence[Sequence[int]]) -> Interval:
    """Return how often something in the middle of the training pass comes in a whole one.

    It is taken to come at regular distances, counted from the beginning of the pass or of the
    training. What came at the first batch only, or once in all, leaves the distance open.

    Args:
        epochs: The epochs of a short run, in order.
        places: For each of them, the numbers of batches before it came.
    """
    if not any(places) or not any(epoch.is_cut for epoch in epochs):
        return _exactly(sum(map(len, places)) / len(epochs))
    length = fmean(epoch.length or epoch.batches for epoch in epochs)
    if several := [p for p in places if len(p) > 1]:
        return _exactly(length / fmean((p[-1] - p[0]) / (len(p) - 1) for p in several))
    seen = [epoch.batches for epoch in epochs]
    if all(places):
        return _once_in_each(length, seen, [p[0] for p in places])
    begins = accumulate(seen, initial=0)
    counted = [begin + place for begin, its in zip(begins, places, strict=False) for place in its]
    if len(counted) > 1:
        return _exactly(length * (len(counted) - 1) / (counted[-1] - counted[0]))
    longest = max(counted[0], sum(seen) - counted[0])
    return Interval(length / sum(seen), 0.0, length / longest)


def _once_in_each(length: float, seen: Sequence[int], places: Sequence[int]) -> Interval:
    """Return how often something comes that came once in each part of a pass that was seen.

    Args:
        length: Batches of a whole pass.
        seen: Batches of the parts.
        places: The numbers of batches before it came.
    """
    after = [batches - place for batches, place in zip(seen, places, strict=True)]
    if all(place > more for place, more in zip(places, after, strict=True)):
        return _exactly(length / fmean(places))
    return Interval(1.0, 1.0, max(1.0, length / max(after)))


def _exactly(times: float) -> Interval:
    return Interval(times, times, times)
