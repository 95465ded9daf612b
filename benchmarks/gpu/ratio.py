"""Ratios of speeds with their errors, on the scale of logarithms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

# 97.5 % quantile of Student's t with two degrees of freedom: two values on each of two sides
T_OF_TWO_AND_TWO = 4.303
# Errors of the logarithm beyond this would hide that a claim is a third too high
NOISY = math.log(4 / 3)


@dataclass(frozen=True)
class Ratio:
    """A ratio of two speeds.

    Attributes:
        log: Its natural logarithm.
        error: Half-width of the logarithm's 95 % interval; None where nothing was repeated.
    """

    log: float
    error: float | None

    @classmethod
    def within(cls, estimate: float, low: float, high: float) -> Ratio:
        """Return the ratio of an interval."""
        return cls(math.log(estimate), math.log(high / low) / 2)

    @property
    def value(self) -> float:
        """The ratio itself."""
        return math.exp(self.log)

    @property
    def least(self) -> float | None:
        """The lower end of its interval; None where nothing was repeated."""
        return None if self.error is None else math.exp(self.log - self.error)

    def agrees_with(self, other: Ratio) -> bool | None:
        """Whether both lie within their errors together; None where these would hide a third."""
        if self.error is None or other.error is None or self.error + other.error > NOISY:
            return None
        return abs(self.log - other.log) <= self.error + other.error

    def __str__(self) -> str:
        if self.error is None:
            return f"{self.value:.2f}x by one run"
        if self.error > NOISY:
            return f"{self.value:.2f}x, too noisy to tell"
        return f"{self.value:.2f}x ± {self.error:.0%}"


def of_speeds(faster: Sequence[float], slower: Sequence[float]) -> Ratio:
    """Return the ratio of two sides that took turns, one or two speeds of each."""
    sides = [[math.log(speed) for speed in side] for side in (faster, slower)]
    log = fmean(sides[0]) - fmean(sides[1])
    if min(map(len, sides)) < 2:
        return Ratio(log, None)
    # Each side's variance is d²/2, its mean's is half of that; both means count.
    squares = sum((a - b) ** 2 / 4 for a, b in (side[:2] for side in sides))
    return Ratio(log, T_OF_TWO_AND_TWO * math.sqrt(squares))
