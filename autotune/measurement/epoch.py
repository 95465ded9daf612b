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
        evaluates_every: Epochs from one evaluation to the next, where the trainer says so; else 1.
    """

    epochs: float | None = None
    where: str = ""
    evaluates_every: float = 1.0


@dataclass(frozen=True)
class OtherPass:
    """One pass of the program over a loader that trains nothing, such as an evaluation.

    Attributes:
        dataset: Class name of the loader's dataset.
        start_s: Seconds from its beginning to the first batch.
        seconds: Seconds from then to its end.
        batches: Batches that the program got.
        is_cut: Whether autotune ended it.
        length: Batches of a whole pass, if it was cut; None if that is unknown.
        is_within: Whether it came in the middle of a training pass.
    """

    dataset: str
    start_s: float
    seconds: float
    batches: int
    is_cut: bool = False
    length: int | None = None
    is_within: bool = False

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
        saving_s: Seconds of saving.
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
        again = self.length / self.batches if self.length else 1.0
        passes = (p.whole_s * (again if p.is_within else 1.0) for p in self.passes)
        return self.computing_s + sum(passes)

    def evaluation_share(self, loop_s: float | None) -> float:
        """Return the share of a whole epoch that evaluation takes, 0 to 1.

        Args:
            loop_s: Seconds of a whole training pass; None takes it from this epoch, whose steps may
                be slower than later ones.
        """
        again = self.length / self.batches if self.length else 1.0
        training_s = self.start_s + again * self.steps_s if loop_s is None else loop_s
        own_s = self.evaluation_s
        return own_s / (training_s + own_s + self.saving_s + self.rest_s)

    def with_passes_of(self, dataset: str, factor: float) -> EpochSeen:
        """Return the epoch with the seconds of passes over a dataset multiplied by a factor."""
        passes = (
            replace(p, start_s=factor * p.start_s, seconds=factor * p.seconds)
            if p.dataset == dataset
            else p
            for p in self.passes
        )
        return replace(self, passes=tuple(passes))

    def with_evaluation(self, share: float) -> EpochSeen:
        """Return the epoch with this share of its evaluations."""
        passes = (
            replace(p, start_s=share * p.start_s, seconds=share * p.seconds) for p in self.passes
        )
        return replace(self, passes=tuple(passes), computing_s=share * self.computing_s)


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
        evaluation_s=_mean([e.evaluation_s for e in usual]),
        saving_s=_mean([e.saving_s for e in usual]),
        rest_s=_mean([e.rest_s for e in usual]),
        is_estimated=not all(e.is_whole for e in usual),
        epochs=len(usual),
        cut_after=max((e.steps for e in usual if e.is_cut), default=None),
    )


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
