"""Compare windows of a config with windows of the baseline and compute the speedup.

On a virtual machine, two windows of the same config, a second apart, were seen to differ by 5 % and
more, although each agreed with itself within 1 %: another guest used the same core, or the clock
changed. The interval of one window cannot show this drift. It is therefore learned from windows
that should agree, and added to every comparison.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from autotune.measurement.interval import Interval, Turn
from autotune.measurement.stats import t_quantile

# The drift assumed before anything is known about the machine, and how many observations it counts
# as. A quiet desktop drifts less, a virtual machine twice as much. In simulations of 30 comparisons
# the share of equal configs that seemed to differ was 0 to 9 % for machines that drift by 0.2 to
# 10 % (tests/measurement/test_comparison.py).
ASSUMED_SPREAD = 0.025
ASSUMED_WEIGHT = 2
NARROW_PCT = 3.0  # half-width of a speedup, in percent, at which a further turn is not worth it


@dataclass(frozen=True)
class Drift:
    """How far the throughput of two equal windows differs, beyond the noise within each.

    The spread of the log ratio is estimated as scaled inverse chi-squared: squared differences are
    added to an assumed one (Gelman et al., Bayesian Data Analysis, 3rd edition, 2.6), so that
    bounds follow Student's t. A Drift is immutable; learning returns a new one.

    Attributes:
        squares: Sum of squared differences, including the assumed one.
        weight: Number of observations, including the assumed ones.
    """

    squares: float = ASSUMED_WEIGHT * ASSUMED_SPREAD**2
    weight: int = ASSUMED_WEIGHT

    @property
    def spread(self) -> float:
        """Standard deviation of the log ratio of two equal windows."""
        return math.sqrt(self.squares / self.weight)

    def reach(self, turns: int) -> float:
        """Return the half-width of the 95 % interval of the mean log ratio over *turns* turns."""
        return t_quantile(self.weight) * self.spread / math.sqrt(turns)

    def having_seen(self, one: Interval, other: Interval) -> Drift:
        """Return the drift after two windows of one config on one rig, which should agree."""
        return self._with(math.log(other.estimate / one.estimate), _noise(one), _noise(other))

    def having_compared(self, turns: Sequence[Turn]) -> Drift:
        """Return the drift after the turns of one comparison, whose ratios should agree."""
        drift = self
        for one, other in pairwise(turns):
            # The difference of two ratios has twice the variance of one ratio.
            difference = (other.log_ratio - one.log_ratio) / math.sqrt(2)
            windows = (one.config, one.reference, other.config, other.reference)
            drift = drift._with(difference, *(_noise(w) / math.sqrt(2) for w in windows))
        return drift

    def _with(self, difference: float, *noises: float) -> Drift:
        # The windows' own noise explains part of the difference; only the rest is drift.
        excess = max(0.0, difference**2 - math.hypot(*noises) ** 2)
        return Drift(self.squares + excess, self.weight + 1)


def speedup(turns: Sequence[Turn], drift: Drift) -> Interval:
    """Return the speedup of a config over the baseline from one or more turns.

    The interval includes the noise of each window and the machine's drift.
    """
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
    """Return whether a config needs no further turn.

    That is so if it is surely slower or faster than the best so far, or its speedup is known within
    ``NARROW_PCT``. One turn is enough to reject a config, but two are needed to accept one: a
    machine may change its speed between two windows (by 40 % in one observed case), and such a
    lucky turn is exactly what would look best.

    Args:
        found: The speedup so far.
        turns: Number of turns behind it.
        incumbent: The best speedup found so far.
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
    """Return the standard deviation of the log throughput of a window."""
    return (_below(window) + _above(window)) / 2 / 1.96
