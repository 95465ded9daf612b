"""Intervals: an estimate with its 95 % interval."""

from __future__ import annotations

from dataclasses import dataclass


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
