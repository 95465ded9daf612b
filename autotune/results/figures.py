"""Figures: what is printed about speed, all of it computed from the claim as it is printed.

People multiply and divide what they read. So a quantity after the change is the printed one before
it times the printed claim, and a training takes its measured parts, with the steps divided by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.measurement.interval import Interval
from autotune.results.training_steps import TrainingTime
from autotune.results.wording import about, number, printed_duration


@dataclass(frozen=True)
class Quantity:
    """What a claim is about, as it was measured of the program as written.

    Attributes:
        value: In *unit*.
        shrinks: Whether less of it is better, as of memory.
    """

    name: str
    value: float
    unit: str
    shrinks: bool = False

    def __str__(self) -> str:
        return f"{number(self.value)} {self.unit}"

    def after(self, claim: Interval) -> str:
        """Return it before and after: ``908 → about 1,450 samples/s``."""
        before = float(number(self.value).replace(",", ""))
        factor = 1 / claim.estimate if self.shrinks else claim.estimate
        return f"{number(self.value)} → about {number(about(before * factor))} {self.unit}"


@dataclass(frozen=True)
class Figures:
    """What is printed about the speed of a search's result.

    Attributes:
        claim: The speedup with its 95 % interval, rounded as it is printed; 1 without one.
        quantity: What it is about; None where that was not read.
        training: None if its length is unknown, or the claim does not tell its time.
        search_s: What the search took, as it is printed.
    """

    claim: Interval
    quantity: Quantity | None
    training: TrainingTime | None
    search_s: float

    @property
    def change(self) -> str:
        """The quantity before and after; empty if it was not read."""
        return "" if self.quantity is None else self.quantity.after(self.claim)

    @property
    def pays_from(self) -> int | None:
        """The number of the training from which on the search has paid; None if it never does."""
        if self.training is None or self.training.saved_s <= 0:
            return None
        return max(1, math.ceil(self.search_s / self.training.saved_s))


def hours_of(hours: float, claim: Interval) -> TrainingTime:
    """Return how long a training takes whose hours the user has said."""
    before_s = printed_duration(3600 * hours)
    after_s = printed_duration(before_s / claim.estimate)
    return TrainingTime(f"--for-hours {hours:g}", before_s, after_s)
