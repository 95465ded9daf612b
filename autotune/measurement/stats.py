"""Statistics of rates: quantiles, steadiness, autocorrelation, what disturbances may hide.

All functions are pure. Intervals are two-sided 95 % intervals.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

from autotune.measurement.block import Block
from autotune.measurement.interval import Interval

NORMAL = 1.96  # standard deviations, of a two-sided 95 % interval
STEADY_BLOCKS = 6  # three earlier blocks and three later ones
# At most this share of a window is discounted for drained buffers, so that the lower bound of a
# rate stays above 0.
MAX_DRAINED = 0.95
MIN_FOR_AUTOCORRELATION = 8  # with fewer rates the estimate is mostly noise


def t_quantile(degrees_of_freedom: float) -> float:
    """Return the two-sided 95 % quantile of Student's t.

    Args:
        degrees_of_freedom: Fractions are rounded down, and less than 1 counts as 1.
    """
    return student_t(0.05, max(1, math.floor(degrees_of_freedom)))


def student_t(level: float, degrees: int) -> float:
    """Return the value that Student's t exceeds in either direction with a given probability.

    Args:
        level: The probability of both tails together, above 0 and below 1.
        degrees: Degrees of freedom, at least 1.

    Source: Hill 1970, "Algorithm 396: Student's t-quantiles", Communications of the ACM 13(10). It
    agrees with the tables within 0.1 %.
    """
    n = degrees
    if n == 1:
        return 1 / math.tan(level * math.pi / 2)
    if n == 2:
        return math.sqrt(2 / (level * (2 - level)) - 2)
    a = 1 / (n - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * n
    y = (d * level) ** (2 / n)
    if y > 0.05 + a:
        x = statistics.NormalDist().inv_cdf(level / 2)
        y = x**2
        if n < 5:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c = (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y**2)
    else:
        y = (
            (1 / (((n + 6) / (n * y) - 0.089 * d - 0.822) * (n + 2) * 3) + 0.5 / (n + 4)) * y - 1
        ) * (n + 1) / (n + 2) + 1 / y
    return math.sqrt(n * y)


def relative_half_width(rates: Sequence[float]) -> float:
    """Return a quick estimate of the half-width of the median's interval, relative to the median.

    It uses normal theory on the median absolute deviation and reduces the number of rates by their
    autocorrelation. That is cheap enough to run between two blocks of a running program. Infinite
    below three rates.
    """
    if len(rates) < 3:
        return math.inf
    centre = statistics.median(rates)
    # 1.4826 scales the median absolute deviation to a standard deviation of normal noise; 1.2533
    # is how much wider the error of a median is than that of a mean.
    deviation = 1.4826 * statistics.median(abs(r - centre) for r in rates)
    rho = autocorrelation(rates)
    effective = max(3.0, len(rates) * (1 - rho) / (1 + rho))
    standard_error = 1.2533 * deviation / math.sqrt(effective)
    return t_quantile(effective - 1) * standard_error / centre


def autocorrelation(rates: Sequence[float]) -> float:
    """Return the lag-1 autocorrelation of rates, limited to 0 to 0.9.

    Rates further from the median than three robust deviations are moved to that distance, so that
    one disturbed block does not decide. Below eight rates the estimate is mostly noise, and 0 is
    returned.
    """
    count = len(rates)
    if count < MIN_FOR_AUTOCORRELATION:
        return 0.0
    centre = statistics.median(rates)
    reach = 3 * 1.4826 * statistics.median(abs(r - centre) for r in rates)
    near = [min(max(r, centre - reach), centre + reach) for r in rates]
    mean = statistics.fmean(near)
    total = sum((r - mean) ** 2 for r in near)
    if not total:
        return 0.0
    lagged = sum((a - mean) * (b - mean) for a, b in pairwise(near))
    unbiased = lagged / total + 1 / count  # taking the mean from the same rates biases it by -1/n
    return min(max(unbiased, 0.0), 0.9)


def is_steady(rates: Sequence[float], *, tolerance: float) -> bool:
    """Return whether the last ``STEADY_BLOCKS`` rates no longer rise or fall.

    They are steady if the medians of the earlier and the later half differ by less than
    *tolerance*, or by less than the noise within both. Noise excuses at most three times
    *tolerance*.

    Args:
        rates: Rates of the blocks, the oldest first.
        tolerance: Relative difference that is accepted, such as 0.02.
    """
    if len(rates) < STEADY_BLOCKS:
        return False
    # Medians of three blocks, so that a single disturbed block neither hides nor feigns a drift
    half = STEADY_BLOCKS // 2
    before, after = rates[-STEADY_BLOCKS:-half], rates[-half:]
    drift = abs(statistics.median(after) / statistics.median(before) - 1)
    noise = max(max(part) / min(part) - 1 for part in (before, after)) / 2
    return drift < max(tolerance, min(noise, 3 * tolerance))


def widen_for_disturbance(
    blocks: Sequence[Block], interval: Interval, drained_share: float = 0.0
) -> Interval:
    """Return an interval widened by what disturbed blocks and drained buffers may hide.

    Args:
        blocks: The window, with the disturbances that are known by now. The rig calls this first;
            the parent calls it again after adding disturbances of GPUs.
        interval: The interval of the throughput.
        drained_share: Share of the samples that came out of buffers, 0 to 1.
    """
    ranks = sum(b.is_disturbed for b in blocks) / 2  # how far the median may have moved
    rates = sorted(b.samples_per_s for b in blocks)
    middle = statistics.median(rates)
    below = _at_rank(rates, (len(rates) - 1) / 2 - ranks) / middle
    above = _at_rank(rates, (len(rates) - 1) / 2 + ranks) / middle
    low = min(interval.low, interval.estimate * below) * (1 - min(drained_share, MAX_DRAINED))
    return Interval(interval.estimate, low, max(interval.high, interval.estimate * above))


def _at_rank(ordered: Sequence[float], place: float) -> float:
    """Return the value at a fractional rank, interpolated between its two neighbours."""
    place = min(max(place, 0.0), len(ordered) - 1.0)
    lower = math.floor(place)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (place - lower) * (ordered[upper] - ordered[lower])


def spread(windows: Sequence[Interval]) -> Interval:
    """Return the median of several windows with their range as bounds.

    A single window keeps its own interval.
    """
    if len(windows) == 1:
        return windows[0]
    estimates = [w.estimate for w in windows]
    return Interval(statistics.median(estimates), min(estimates), max(estimates))
