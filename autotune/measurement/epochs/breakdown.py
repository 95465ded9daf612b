"""Epoch breakdown: what a whole epoch of the program consists of, put together from seen ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from autotune.measurement.epochs.epoch import EpochSeen, times_per_pass
from autotune.measurement.interval import Interval
from autotune.measurement.stats import NORMAL, t_quantile

MOST_EDGES = 0.95  # of a training pass
# Relative standard deviation that a part is taken to have from epoch to epoch, and the weight of
# that in degrees of freedom: visits on a busy 2-core machine were seen to vary by 8-17 %.
ASSUMED_SPREAD = 0.1
ASSUMED_DEGREES = 4
# The same of equal processes, which no number of epochs in one of them makes smaller: whole epochs
# of six programs on a 2-core virtual machine varied by 4-11 % from one process to the next.
PROCESS_SPREAD = 0.08


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
        is_first: Whether it is the first epoch of a process, which is slower than later ones.
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
    is_first: bool = False

    @property
    def as_first(self) -> EpochBreakdown:
        """The same as a first epoch, which gives only upper bounds for what is around its steps."""
        evaluation_s, saving_s, rest_s = (
            replace(part, low=0.0) for part in (self.evaluation_s, self.saving_s, self.rest_s)
        )
        return replace(
            self, evaluation_s=evaluation_s, saving_s=saving_s, rest_s=rest_s, is_first=True
        )

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
        """The speedup of the epoch if its steps, and the start of their loader, took no time.

        Infinite if the epoch consists of nothing else.
        """
        steps = self.share(self.steps_s) + self.share(self.edges_s)
        return 1 / (1 - steps) if steps < 1 else math.inf


def breakdown(
    seen: Sequence[EpochSeen], loop_s: Interval, within_s: Interval | None = None
) -> EpochBreakdown:
    """Return what a whole epoch consists of.

    Args:
        seen: The epochs of a short run, in order; at least one.
        loop_s: Seconds of a whole training pass, the start of its loader included, as the
            measurement of the training loop gives them.
        within_s: Seconds of what comes in the middle of a whole training pass, evaluation and
            saving, by a process that made many more steps than these epochs; None if they tell it
            themselves.

    Raises:
        ValueError: There is no epoch.
    """
    if not seen:
        raise ValueError("a breakdown needs at least one epoch")
    others, usual = _others(seen), usual_epochs(seen)
    edges = _mean([e.start_s for e in usual])
    edge_share = min(MOST_EDGES, edges.estimate / loop_s.estimate)
    evaluated = times_per_pass(others, [e.evaluated_after for e in others])
    saved = times_per_pass(others, [e.saved_after for e in others])
    each_save_s = [e.saving_within_s / len(e.saved_after) for e in usual if e.saved_after]
    is_counted = within_s is not None or evaluated.high <= evaluated.low
    saving_within_s = _times(saved, each_save_s) if within_s is None else Interval(0.0, 0.0, 0.0)
    return EpochBreakdown(
        steps_s=loop_s.times(1 - edge_share),
        edges_s=loop_s.times(edge_share),
        evaluation_s=_sum(_between(others, usual), within_s or _within(others)),
        saving_s=_sum(_mean([e.saving_s for e in usual]), saving_within_s),
        rest_s=_mean([e.rest_s for e in usual]),
        steps=fmean(e.times * e.steps for e in usual),
        is_estimated=not all(e.is_whole for e in usual),
        epochs=len(usual),
        cut_after=max((e.steps for e in usual if e.is_cut), default=None),
        evaluations=None if is_counted else evaluated,
    )


def mean_breakdown(found: Sequence[EpochBreakdown]) -> EpochBreakdown:
    """Return what an epoch consists of on average over processes, which count alike.

    Args:
        found: What each process showed; at least one.
    """
    first = found[0]
    if len(found) == 1:
        return first
    return replace(
        first,
        steps_s=mean_of([one.steps_s for one in found]),
        edges_s=mean_of([one.edges_s for one in found]),
        evaluation_s=mean_of([one.evaluation_s for one in found]),
        saving_s=mean_of([one.saving_s for one in found]),
        rest_s=mean_of([one.rest_s for one in found]),
        steps=fmean(one.steps for one in found),
        is_estimated=any(one.is_estimated for one in found),
        epochs=sum(one.epochs for one in found),
    )


def mean_of(found: Sequence[Interval]) -> Interval:
    """Return the mean of what processes showed; its bounds hold what each of them did.

    Args:
        found: Their intervals, whose errors are independent; at least one.
    """
    mean = fmean(one.estimate for one in found)
    below = math.hypot(*(one.estimate - one.low for one in found)) / len(found)
    above = math.hypot(*(one.high - one.estimate for one in found)) / len(found)
    seen = [one.estimate for one in found]
    return Interval(mean, min(mean - below, *seen), max(mean + above, *seen))


def tells_within(seen: Sequence[EpochSeen], most_s: Interval) -> bool:
    """Return whether epochs tell themselves what comes in the middle of a training pass.

    They do if they were not cut. Else they do if they saw at which distances it comes, and miss
    nothing that comes less often.

    Args:
        seen: The epochs of a short run of the program as written, in order; at least one.
        most_s: Seconds of it in a whole training pass, by a process that made many more steps.
    """
    others = _others(seen)
    if not any(e.is_cut for e in usual_epochs(seen)):
        return True
    evaluated = times_per_pass(others, [e.evaluated_after for e in others])
    is_regular = evaluated.high > 0 and evaluated.low == evaluated.high
    return is_regular and _within(others).high >= most_s.low


def usual_epochs(seen: Sequence[EpochSeen]) -> list[EpochSeen]:
    """Return the epochs that stand for the others; at least one of at least one.

    The first epochs of a process are slower than later ones, and the last of a program holds what
    comes at its end. So the later half of the others counts, if there are others.
    """
    others = _others(seen)
    return others[len(others) // 2 :]


def _others(seen: Sequence[EpochSeen]) -> list[EpochSeen]:
    return [e for e in seen[1:] if not e.is_last] or [*seen[1:]] or [*seen]


def with_timed_loop(seen: Sequence[EpochSeen], loop_s: Interval) -> Interval:
    """Return the seconds of a training pass by its windows and, where seen as a whole, its epochs.

    Both come from few processes, so both count alike: the mean of the logarithms. Where the two
    differ by more than their intervals say, the interval holds both.

    Args:
        seen: The epochs of a short run, in order; at least one.
        loop_s: Seconds of a whole training pass, as the windows of a search give them.
    """
    usual = usual_epochs(seen)
    if any(epoch.is_cut for epoch in usual):
        return loop_s
    timed = _mean([epoch.start_s + epoch.steps_s for epoch in usual])
    if not timed.low or not loop_s.low:
        return loop_s
    estimate = math.sqrt(timed.estimate * loop_s.estimate)
    apart = abs(math.log(timed.estimate / loop_s.estimate)) / 2
    low = math.hypot(*(math.log(s.estimate / s.low) for s in (timed, loop_s))) / 2
    high = math.hypot(*(math.log(s.high / s.estimate) for s in (timed, loop_s))) / 2
    return Interval(
        estimate, estimate * math.exp(-max(low, apart)), estimate * math.exp(max(high, apart))
    )


def ending_s(seen: Sequence[EpochSeen]) -> float:
    """Return the seconds of what a program does only at its end, such as a test or a checkpoint.

    0.0 if its end was not seen. What comes every few epochs is part of the epochs, so of each kind
    counts what is more than in any other epoch but the first. A wait for threads belongs to what
    came before it.
    """
    others, last = _others(seen), seen[-1]
    if not last.is_last or last in others:
        return 0.0
    around = [(e.between_s, e.saving_s, e.rest_s) for e in (last, *others)]
    return math.fsum(max(0.0, own - max(usual)) for own, *usual in zip(*around, strict=True))


def around_batch_s(seen: Sequence[EpochSeen]) -> Interval:
    """Return the seconds that lie around the training loop in an epoch, per batch of that.

    Args:
        seen: The epochs of a short run, in order; at least one. Each has its length within the
            training.
    """
    parts, last = breakdown(seen, Interval(1.0, 1.0, 1.0)), usual_epochs(seen)[-1]
    around = _sum(_sum(parts.evaluation_s, parts.saving_s), parts.rest_s)
    return around.times(1 / (last.length or last.batches))


def is_surely_more(after: Interval, before: Interval) -> bool:
    """Return whether seconds of one process are more than those of another, beyond their errors.

    The errors of two processes are independent, so their squares add up.
    """
    if not before.low:
        return False
    doubt = math.hypot(*((s.high - s.low) / 2 / s.estimate for s in (before, after)))
    return math.log(after.estimate / before.estimate) > doubt


def _within(others: Sequence[EpochSeen]) -> Interval:
    """Return the seconds of evaluation in the middle of a whole training pass."""
    each_pass_s = [e.within_s / len(e.evaluated_after) for e in others if e.evaluated_after]
    return _times(times_per_pass(others, [e.evaluated_after for e in others]), each_pass_s)


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
    """Return a mean with its interval, from a few epochs of one process, for any process."""
    count, mean = len(seconds), fmean(seconds)
    if mean <= 0:
        return Interval(0.0, 0.0, 0.0)
    scatter = sum((s / mean - 1) ** 2 for s in seconds)
    degrees = ASSUMED_DEGREES + count - 1
    spread = math.sqrt((ASSUMED_DEGREES * ASSUMED_SPREAD**2 + scatter) / degrees)
    within = t_quantile(degrees) * spread / math.sqrt(count)
    half = min(1.0, math.hypot(within, NORMAL * PROCESS_SPREAD))
    return Interval(mean, mean * (1 - half), mean * (1 + half))
