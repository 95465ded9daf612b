"""Budget: the wall time of a search, its spelling, and until when whoever waits may wait."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, time

import psutil

from autotune.errors import UsageError
from autotune.measurement.outcome import Ending, Outcome

SECONDS = {"s": 1, "m": 60, "h": 3600}
OVERDRAFT = 0.15  # of the budget, to let a running confirmation end
# To end a program that ignores what it is told takes 1 s until it is signalled, as long until it is
# killed (processes.py), and a moment to write the result.
CLOSING_S = 2.5
MODULE = ("autotune", "__main__.py")  # as ``python -m autotune`` begins
MAX_IMPORTS_S = 30.0  # the clock may have been set meanwhile
ENDING_S = 1.0  # most programs end sooner; so most searches end within their budget


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


def since_command_s() -> float:
    """Return the seconds since this process began, where it is the command ``autotune``; else 0.

    Its imports took 2-6 s on 2 cores, and whoever gives a budget on the command line waits for
    them. Elsewhere, as in a notebook, a process began for other reasons.
    """
    name = Path(sys.argv[0])
    is_command = name.stem == "autotune" or (name.parent.name, name.name) == MODULE
    age_s = time() - psutil.Process().create_time() if is_command else 0.0
    return min(max(0.0, age_s), MAX_IMPORTS_S)


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

    @property
    def overdraft_s(self) -> float:
        """Seconds until the last moment to close what runs; negative once that has passed."""
        return self.left_s + OVERDRAFT * self.total_s - CLOSING_S

    @property
    def wait_s(self) -> float:
        """Seconds that anything may still be waited for, so that there is time to close it."""
        return min(self.left_s - ENDING_S, self.overdraft_s)


@dataclass(frozen=True)
class Until:
    """How long work may go on; called many times a second while a rig is at work.

    Attributes:
        stopped: Returns the Ending that the user wishes for, if any.
        left_s: Seconds left.
        reason: What to say when none are.
    """

    stopped: Callable[[], Ending | None]
    left_s: Callable[[], float]
    reason: str

    def __call__(self) -> Ending | None:
        """Return why the work ends now, None while it may go on."""
        if ending := self.stopped():
            return ending
        return Ending(Outcome.OUT_OF_TIME, self.reason) if self.left_s() <= 0 else None


def seconds_left(should_stop: Callable[[], Ending | None]) -> float:
    """Return how long work may go on; infinite for a wish that knows no time."""
    return should_stop.left_s() if isinstance(should_stop, Until) else math.inf
