"""Intervals: an estimate with its 95 % interval, and the logarithm of a ratio."""

from __future__ import annotations

import math
from dataclasses import dataclass

NORMAL = 1.96  # standard deviations, of a two-sided 95 % interval
MOST_LOG = 20.0  # half of an interval that says nothing; more would overflow


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval, all in the same unit.

    Raises:
        ValueError: The estimate does not lie within the bounds.
    """

    estimate: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.estimate <= self.high:
            raise ValueError(f"an interval encloses its estimate, got {self}")

    def __str__(self) -> str:
        return f"{self.estimate:,.3g} [{self.low:,.3g}, {self.high:,.3g}]"

    @property
    def half_width_pct(self) -> float:
        """Half of the interval's width, in percent of the estimate."""
        return 100 * (self.high - self.low) / 2 / self.estimate

    def times(self, factor: float) -> Interval:
        """Return the interval multiplied by a positive factor."""
        return Interval(self.estimate * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True)
class LogRatio:
    """Natural logarithm of a ratio, with its standard error."""

    value: float
    error: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.error >= 0):
            raise ValueError(
                f"no ratio has {self.value} as logarithm, with an error of {self.error}"
            )

    @property
    def interval(self) -> Interval:
        """The ratio with its 95 % interval."""
        half = min(NORMAL * self.error, MOST_LOG)
        return Interval(*(math.exp(self.value + by) for by in (0.0, -half, half)))
