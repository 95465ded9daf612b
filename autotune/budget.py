"""Budget: the wall time of a search, and its spelling."""

from __future__ import annotations

import re
from collections.abc import Callable
from time import monotonic

from autotune.errors import UsageError

SECONDS = {"s": 1, "m": 60, "h": 3600}


def parse_duration(text: str) -> float:
    """Return seconds from ``90``, ``90s``, ``3m``, ``1h30m``.

    Raises:
        UsageError: when the text is no duration above zero.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh]?)", text)
    whole = "".join(number + unit for number, unit in parts)
    seconds = sum(float(number) * SECONDS[unit or "s"] for number, unit in parts)
    if whole != text.strip() or seconds <= 0:
        raise UsageError(f"'{text}' is no duration. Write for example 90s, 3m or 1h30m.")
    return seconds


def format_duration(seconds: float) -> str:
    """Return a duration as people say it: ``45s``, ``3m 05s``, ``1h 02m``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


class Budget:
    """Counts down from the moment it is made.

    Args:
        total_s: The whole budget.
        spent_s: What earlier searches on the same run used of it.
        clock: Seconds that never go back.
    """

    def __init__(
        self, total_s: float, spent_s: float = 0.0, clock: Callable[[], float] = monotonic
    ) -> None:
        self.total_s = total_s
        self._spent_s = spent_s
        self._clock = clock
        self._started = clock()

    @property
    def spent_s(self) -> float:
        """Seconds used so far, earlier searches included."""
        return self._spent_s + self._clock() - self._started

    @property
    def left_s(self) -> float:
        """Seconds left; negative once overdrawn."""
        return self.total_s - self.spent_s
