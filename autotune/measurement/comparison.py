"""Comparison: what windows of a config and of the baseline, in turn, say of its speedup.

Two windows of the same config, a second apart, were seen to differ by 5 % and more on a virtual
machine, while each agreed within 1 % with itself: another guest on the same core, a clock that
moves. No interval of one window can tell of that, so it is learnt from windows that should agree,
and counted into every comparison.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from autotune.measurement.measurement import Interval, Turn
from autotune.measurement.stats import t_quantile

# Before anything is known of a machine, this much drift is assumed, with the weight of so many
# observations: a quiet desktop shows less, a virtual machine twice as much. In simulations of 30
# comparisons the share of equal configs that seemed to differ was 0 to 9 % for machines that drift
# by 0.2 to 10 % (tests/test_comparison.py).
ASSUMED_SPREAD = 0.025
ASSUMED_WEIGHT = 2
NARROW_PCT = 3.0  # half-width of a speedup at which one more turn is not worth its time


@dataclass(frozen=True)
class Drift:
    """How far the log ratio of two equal windows lies from 0, beyond their own noise.

    Scaled inverse chi-squared: squared differences add up to an assumed one (Gelman et al.,
    Bayesian Data Analysis, 3rd edition, 2.6), so that bounds are Student's t.

    Attributes:
        squares: Sum of squares, what was assumed included.
        weight: Number of observations, the same.
    """

    squares: float = ASSUMED_WEIGHT * ASSUMED_SPREAD**2
    weight: int = ASSUMED_WEIGHT

    @property
    def spread(self) -> float:
        """Standard deviation of the log ratio of two equal windows."""
        return math.sqrt(self.squares / self.weight)

    def reach(self, turns: int) -> float:
        """Return the half-width of the 95 % interval of the mean log ratio of so many turns."""
        return t_quantile(self.weight) * self.spread / math.sqrt(turns)

    def having_seen(self, one: Interval, other: Interval) -> Drift:
        """Learn from two windows of one config on one rig."""
        return self._with(math.log(other.estimate / one.estimate), _noise(one), _noise(other))

    def having_compared(self, turns: Sequence[Turn]) -> Drift:
        """Learn from the turns of one comparison, whose ratios should agree."""
        drift = self
        for one, other in pairwise(turns):
            difference = (other.log_ratio - one.log_ratio) / math.sqrt(2)
            windows = (one.config, one.reference, other.config, other.reference)
            drift = drift._with(difference, *(_noise(w) / math.sqrt(2) for w in windows))
        return drift

    def _with(self, difference: float, *noises: float) -> Drift:
        excess = max(0.0, difference**2 - math.hypot(*noises) ** 2)
        return Drift(self.squares + excess, self.weight + 1)


def speedup(turns: Sequence[Turn], drift: Drift) -> Interval:
    """Return the speedup that one or more turns show, as wide as noise and drift make it."""
    centre = statistics.fmean(turn.log_ratio for turn in turns)
    reach = drift.reach(len(turns))
    below = math.hypot(
        reach,
        *(_below(t.config) / len(turns) for t in turns),
        *(_above(t.reference) / len(turns) for t in turns),
    )
    above = math.hypot(
        reach,
        *(_above(t.config) / len(turns) for t in turns),
        *(_below(t.reference) / len(turns) for t in turns),
    )
    return Interval(math.exp(centre), math.exp(centre - below), math.exp(centre + above))


def is_decided(found: Interval, turns: int, incumbent: float) -> bool:
    """Tell whether a config is surely slower or faster than the best so far, or known narrowly.

    It is believed to be slower after one turn and faster after two: a machine may change its pace
    between two windows, by 40 % in what was seen, and what looks best gets the attention.
    """
    if found.high < incumbent:
        return True
    is_clear = found.low > incumbent or found.half_width_pct <= NARROW_PCT
    return turns > 1 and is_clear


def _below(window: Interval) -> float:
    return math.log(window.estimate / window.low)


def _above(window: Interval) -> float:
    return math.log(window.high / window.estimate)


def _noise(window: Interval) -> float:
    """Standard deviation of the logarithm of a window's throughput."""
    return (_below(window) + _above(window)) / 2 / 1.96
