"""The regression gate: whether a slowdown is ruled out, is there, or cannot be told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from autotune.errors import UsageError
from autotune.measurement.claim import Claim


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
        """Return what the intervals of a claim say; without enough processes, nothing.

        It passes what is slower by less than that with 97.5 %, and fails what is slower with 99.5 %
        and looks slower by more: a false alarm stops somebody's commit. (With 97.5 %, 1 of 10 equal
        commits was stopped on a shared 2-core machine, by three pairs of processes.)
        """
        if claim.is_enough and claim.speedup.low >= self.least:
            return Verdict.PASSED
        is_sure = claim.is_enough and claim.sure.high < 1
        return Verdict.FAILED if is_sure and self._looks_slower(claim) else Verdict.UNDECIDED

    def is_over(self, claim: Claim) -> bool:
        """Whether further processes are of no use: the verdict is sure by the 99 % interval."""
        is_failed = claim.sure.high < 1 and self._looks_slower(claim)
        return claim.is_enough and (is_failed or claim.sure.low >= self.least)

    def _looks_slower(self, claim: Claim) -> bool:
        return claim.speedup.estimate < self.least
