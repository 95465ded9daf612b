"""Epoch: what one epoch of the program consists of, training steps and everything else.

A short run sees epochs whose passes may be cut (``EpochSeen``). With the speed of the training loop
they make up a whole epoch (``EpochBreakdown``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
        where: Where that is said, such as ``train.py:57: for epoch in range(epochs)``.
        evaluates_every: Epochs from one evaluation to the next, where a library's trainer evaluates
            by its own count; else 1.
        saves_every: The same of checkpoints.
    """

    epochs: float | None = None
    where: str = ""
    evaluates_every: float = 1.0
    saves_every: float = 1.0


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
        is_within: Whether it came in the middle of a training pass.
    """

    loader: str
    start_s: float
    seconds: float
    batches: int
    is_cut: bool = False
    length: int | None = None
    is_within: bool = False

    def times(self, factor: float) -> OtherPass:
        """Return the pass with its seconds multiplied by a factor."""
        return replace(self, start_s=factor * self.start_s, seconds=factor * self.seconds)

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
    def evaluation_s(self) -> float:
        """Seconds of evaluation in a whole epoch, estimated where passes were cut.

        A pass in the middle of a training pass is taken to come again in the part that was cut.
        """
        passes = (p.whole_s * (self._again if p.is_within else 1.0) for p in self.passes)
        return self.computing_s + sum(passes)

    @property
    def whole_saving_s(self) -> float:
        """Seconds of saving in a whole epoch, estimated where a training pass was cut."""
        return self.saving_s + self._again * self.saving_within_s

    @property
    def _again(self) -> float:
        """How often what comes in the middle of the training pass comes in a whole one."""
        return self.length / self.batches if self.length else 1.0

    def evaluation_share(self, loop_s: float | None) -> float:
        """Return the share of a whole epoch that evaluation takes, 0 to 1.

        Args:
            loop_s: Seconds of a whole training pass; None takes it from this epoch, whose steps may
                be slower than later ones.
        """
        training_s = self.start_s + self._again * self.steps_s if loop_s is None else loop_s
        own_s = self.evaluation_s
        return own_s / (training_s + own_s + self.whole_saving_s + self.rest_s)

    def with_passes_over(self, loader: str, factor: float) -> EpochSeen:
        """Return the epoch with the seconds of passes over a loader multiplied by a factor."""
        passes = (p.times(factor) if p.loader == loader else p for p in self.passes)
        return replace(self, passes=tuple(passes))

    def as_often(self, length: RunLength) -> EpochSeen:
        """Return the epoch with the share of evaluation and saving that each epoch has.

        A library's trainer evaluates and saves after each short epoch, but may do so less often.
        """
        evaluates, saves = 1 / length.evaluates_every, 1 / length.saves_every
        return replace(
            self,
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
        is_estimated: Whether a part was put together from a cut pass.
        epochs: Number of epochs that were seen.
        cut_after: Steps after which a training pass was cut, at most; None if none was cut.
    """

    steps_s: Interval
    edges_s: Interval
    evaluation_s: Interval
    saving_s: Interval
    rest_s: Interval
    is_estimated: bool
    epochs: int
    cut_after: int | None = None

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
    return EpochBreakdown(
        steps_s=loop_s.times(1 - edge_share),
        edges_s=loop_s.times(edge_share),
        evaluation_s=_evaluation(others, usual),
        saving_s=_mean([e.whole_saving_s for e in usual]),
        rest_s=_mean([e.rest_s for e in usual]),
        is_estimated=not all(e.is_whole for e in usual),
        epochs=len(usual),
        cut_after=max((e.steps for e in usual if e.is_cut), default=None),
    )


def _evaluation(others: Sequence[EpochSeen], usual: Sequence[EpochSeen]) -> Interval:
    """Return the seconds of evaluation per epoch.

    A program that evaluates in some epochs only does so at regular distances. So whole distances
    count, from one such epoch to the last; if there was only one, the number per epoch is open.
    """
    places = [n for n, epoch in enumerate(others) if epoch.evaluation_s]
    if len(places) in {0, len(others)}:
        return _mean([e.evaluation_s for e in usual])
    seconds = _mean([others[n].evaluation_s for n in places])
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
