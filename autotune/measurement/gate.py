"""The regression gate: whether a slowdown is ruled out, is there, or cannot be told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from autotune.errors import UsageError
from autotune.measurement.claim import Claim
from autotune.measurement.interval import Interval


class Verdict(StrEnum):
    """What a gate says. Users read the values."""

    PASSED = "passed"
    FAILED = "failed"
    UNDECIDED = "cannot tell"


@dataclass(frozen=True)
class Gate:
    """How much slower the second of two sides may not be.

    Attributes:
        slower_pct: In percent of the first side's samples/s, between 0 and 100.
    """

    slower_pct: float

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the gate of a percentage as users write it: ``5%`` or ``5``.

        Raises:
            UsageError: when it is no number between 0 and 100.
        """
        try:
            slower_pct = float(text.strip().removesuffix("%"))
        except ValueError:
            slower_pct = 0.0
        if not 0 < slower_pct < 100:
            raise UsageError(
                f"--fail-if-slower takes a percentage above 0 and below 100, such as 5%, not "
                f"'{text}'."
            )
        return cls(slower_pct)

    @property
    def least(self) -> float:
        """The speedup below which the second side is slower by more than that."""
        return 1 - self.slower_pct / 100

    def verdict(self, claim: Claim) -> Verdict:
        """Return what a claim says; without enough processes, nothing.

        It passes what is slower by less than that by its 95 % interval. It fails what looks slower
        by more and is slower by its 99 % interval, as a false alarm stops somebody's commit. (With
        95 %, three pairs of processes stopped 1 of 10 equal commits on a shared 2-core machine.)
        """
        return self._of(claim, claim.speedup)

    def is_over(self, claim: Claim) -> bool:
        """Whether further processes are of no use: the verdict is sure by the 99 % interval."""
        return self._of(claim, claim.sure) is not Verdict.UNDECIDED

    def _of(self, claim: Claim, passing: Interval) -> Verdict:
        if claim.is_enough and passing.low >= self.least:
            return Verdict.PASSED
        if claim.is_enough and claim.sure.high < 1 and claim.speedup.estimate < self.least:
            return Verdict.FAILED
        return Verdict.UNDECIDED
