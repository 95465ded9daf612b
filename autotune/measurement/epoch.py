"""Epoch: what one epoch of the program consists of, training steps and everything else.

A short run sees epochs whose passes may be cut (``EpochSeen``). With the speed of the training loop
they make up a whole epoch (``EpochBreakdown``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean

from autotune.measurement.interval import Interval
from autotune.measurement.stats import t_quantile

MOST_EDGES = 0.95  # of a training pass
# Relative standard deviation that a part is taken to have from epoch to epoch, and the weight of
# that in degrees of freedom: visits on a busy 2-core machine were seen to vary by 8-17 %.
ASSUMED_SPREAD = 0.1
ASSUMED_DEGREES = 4


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
    """

    epochs: float | None = None
    where: str = ""
    steps: float | None = None
    evaluates_every: float = 1.0
    saves_every: float = 1.0

    def __str__(self) -> str:
        noun = "epoch" if self.epochs == 1 else "epochs"
        count = f"{self.epochs:g} {noun}" if self.steps is None else f"{self.steps:,.0f} steps"
        return f"{count} ({self.where})"


@dataclass(frozen=True)
class OtherPass:
    """One pass of the program over a loader that trains nothing, such as an evaluation.

    Attributes:
        loader: By which the loader is told from others.
        start_s: Seconds from its beginning to the first batch.
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
        start_s: Seconds from the beginning of these passes to their first batches.
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
        batches = self.length
        if batches is not None and length.steps is not None:
            batches = min(batches, math.ceil(length.steps * self.batches / self.steps))
        return replace(
            self,
            length=batches,
            passes=tuple(p.times(evaluates) for p in self.passes),
            computing_s=evaluates * self.computing_s,
            saving_s=saves * self.saving_s,
            saving_within_s=saves * self.saving_within_s,
        )


@dataclass(frozen=True)
class EpochBreakdown:
    """What a whole epoch consists of; all parts in seconds, which add up to the epoch.

    Attributes:
        steps_s: Training steps.
        edges_s: Starting the training loader: its workers and the first batch.
        evaluation_s: Passes that train nothing and computing without gradients.
        saving_s: Saving checkpoints, on the disk that holds the scratch of the search.
        rest_s: Everything else, such as logging.
        steps: Number of optimizer steps of the program as written.
        is_estimated: Whether a part was put together from a cut pass.
        epochs: Number of epochs that were seen.
        cut_after: Steps after which a training pass was cut, at most; None if none was cut.
        evaluations: How often evaluation comes in the middle of the epoch, where that was not seen
            for sure; else None.
    """

    steps_s: Interval
    edges_s: Interval
    evaluation_s: Interval
    saving_s: Interval
    rest_s: Interval
    steps: float
    is_estimated: bool
    epochs: int
    cut_after: int | None = None
    evaluations: Interval | None = None

    @property
    def parts(self) -> dict[str, Interval]:
        """The parts by the names that users read, in the order of an epoch."""
        return {
            "training steps": self.steps_s,
            "starting the loader": self.edges_s,
            "evaluation": self.evaluation_s,
            "saving": self.saving_s,
            "the rest": self.rest_s,
        }

    @property
    def seconds(self) -> Interval:
        """Seconds of the epoch; errors of the parts are taken to be independent."""
        parts = self.parts.values()
        estimate = sum(p.estimate for p in parts)
        below = math.hypot(*(p.estimate - p.low for p in parts))
        above = math.hypot(*(p.high - p.estimate for p in parts))
        return Interval(estimate, max(0.0, estimate - below), estimate + above)

    def share(self, part: Interval) -> float:
        """Return the share of the epoch that a part takes, 0 to 1."""
        return part.estimate / self.seconds.estimate

    @property
    def ceiling(self) -> float:
        """The speedup of the epoch if its steps took no time at all; infinite if they are all."""
        steps = self.share(self.steps_s) + self.share(self.edges_s)
        return 1 / (1 - steps) if steps < 1 else math.inf


def breakdown(seen: Sequence[EpochSeen], loop_s: Interval) -> EpochBreakdown:
    """Return what a whole epoch consists of.

    The first epochs of a process are slower than later ones, and the last of a program holds what
    comes at its end. So the later half of the others counts, if there are others.

    Args:
        seen: The epochs of a short run, in order; at least one.
        loop_s: Seconds of a whole training pass, the start of its loader included, as the
            measurement of the training loop gives them.

    Raises:
        ValueError: There is no epoch.
    """
    if not seen:
        raise ValueError("a breakdown needs at least one epoch")
    others = [e for e in seen[1:] if not e.is_last] or [*seen[1:]] or [*seen]
    usual = others[len(others) // 2 :]
    edges = _mean([e.start_s for e in usual])
    edge_share = min(MOST_EDGES, edges.estimate / loop_s.estimate)
    evaluated = times_per_pass(others, [e.evaluated_after for e in others])
    saved = times_per_pass(others, [e.saved_after for e in others])
    each_save_s = [e.saving_within_s / len(e.saved_after) for e in usual if e.saved_after]
    each_pass_s = [e.within_s / len(e.evaluated_after) for e in others if e.evaluated_after]
    return EpochBreakdown(
        steps_s=loop_s.times(1 - edge_share),
        edges_s=loop_s.times(edge_share),
        evaluation_s=_sum(_between(others, usual), _times(evaluated, each_pass_s)),
        saving_s=_sum(_mean([e.saving_s for e in usual]), _times(saved, each_save_s)),
        rest_s=_mean([e.rest_s for e in usual]),
        steps=fmean(e.times * e.steps for e in usual),
        is_estimated=not all(e.is_whole for e in usual),
        epochs=len(usual),
        cut_after=max((e.steps for e in usual if e.is_cut), default=None),
        evaluations=evaluated if evaluated.high > evaluated.low else None,
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


def _times(times: Interval, seconds: Sequence[float]) -> Interval:
    """Return the seconds of something that comes several times."""
    if not seconds:
        return Interval(0.0, 0.0, 0.0)
    each = _mean(seconds)
    return Interval(times.estimate * each.estimate, times.low * each.low, times.high * each.high)


def _sum(one: Interval, two: Interval) -> Interval:
    return Interval(one.estimate + two.estimate, one.low + two.low, one.high + two.high)


def _between(others: Sequence[EpochSeen], usual: Sequence[EpochSeen]) -> Interval:
    """Return the seconds per epoch of evaluation after the training pass.

    A program that evaluates in some epochs only does so at regular distances. So whole distances
    count, from one such epoch to the last; if there was only one, the number per epoch is open.
    """
    places = [n for n, epoch in enumerate(others) if epoch.between_s]
    if len(places) in {0, len(others)}:
        return _mean([e.between_s for e in usual])
    seconds = _mean([others[n].between_s for n in places])
    if len(places) == 1:
        found = seconds.times(1 / len(others))
        return Interval(found.estimate, 0.0, seconds.high)
    return seconds.times((len(places) - 1) / (places[-1] - places[0]))


def _mean(seconds: Sequence[float]) -> Interval:
    """Return a mean with its interval, from a few epochs of one process."""
    count, mean = len(seconds), fmean(seconds)
    if mean <= 0:
        return Interval(0.0, 0.0, 0.0)
    scatter = sum((s / mean - 1) ** 2 for s in seconds)
    degrees = ASSUMED_DEGREES + count - 1
    spread = math.sqrt((ASSUMED_DEGREES * ASSUMED_SPREAD**2 + scatter) / degrees)
    half = min(1.0, t_quantile(degrees) * spread / math.sqrt(count))
    return Interval(mean, mean * (1 - half), mean * (1 + half))
