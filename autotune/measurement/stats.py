"""Statistics: quantiles of Student's t, and the range of several measurements."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from autotune.measurement.interval import Interval


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


def spread(intervals: Sequence[Interval]) -> Interval:
    """Return the median of several measurements with their range as bounds.

    A single one keeps its own interval.
    """
    if len(intervals) == 1:
        return intervals[0]
    estimates = [one.estimate for one in intervals]
    return Interval(statistics.median(estimates), min(estimates), max(estimates))
