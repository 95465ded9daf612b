"""Budget: the wall time of a search, how users write it, and how long work may go on.

Every wait in a search asks an ``Until``, which leaves enough time to close the program that runs.
"""

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
# Share of the budget by which a search may exceed it, so that a confirmation under way can end.
OVERDRAFT = 0.15
# Ending a program that does not react takes 1 s until it is signalled, another until it is killed
# (processes.py), and a moment to write the result.
CLOSING_S = 2.5
MODULE = ("autotune", "__main__.py")  # the end of sys.argv[0] under ``python -m autotune``
MAX_IMPORTS_S = 30.0  # a system clock that was set meanwhile would make the process look older
ENDING_S = 1.0  # most programs end sooner, so most searches end within their budget


def parse_duration(text: str) -> float:
    """Return the seconds of a duration as users write it: ``90``, ``90s``, ``3m``, ``1h30m``.

    A number without a unit is in seconds. Fractions such as ``1.5m`` are accepted.

    Raises:
        UsageError: when the text is not a duration, or not above zero.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh]?)", text)
    # findall() skips what it does not understand, so the parts must add up to the whole text.
    whole = "".join(number + unit for number, unit in parts)
    seconds = sum(float(number) * SECONDS[unit or "s"] for number, unit in parts)
    if whole != text.strip() or seconds <= 0:
        raise UsageError(f"'{text}' is not a duration. Write for example 90s, 3m or 1h30m.")
    return seconds


def since_command_s() -> float:
    """Return the seconds since this process began if it is the ``autotune`` command, else 0.

    A user who gives a budget on the command line also waits for the imports, which took 2-6 s on 2
    cores, so they count. Other processes, such as a notebook, began for other reasons.
    """
    name = Path(sys.argv[0])
    is_command = name.stem == "autotune" or (name.parent.name, name.name) == MODULE
    age_s = time() - psutil.Process().create_time() if is_command else 0.0
    return min(max(0.0, age_s), MAX_IMPORTS_S)


class Budget:
    """A wall-time budget that counts down from the moment it is created.

    Args:
        total_s: The whole budget.
        spent_s: What earlier sessions of the same run used of it.
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
        """Seconds used so far, earlier sessions included."""
        return self._spent_s + self._clock() - self._started

    @property
    def left_s(self) -> float:
        """Seconds left; negative once overdrawn."""
        return self.total_s - self.spent_s

    @property
    def overdraft_s(self) -> float:
        """Seconds until the last moment at which closing the program must begin.

        Unlike ``left_s`` this counts the overdraft that a confirmation may use. Negative once that
        moment has passed.
        """
        return self.left_s + OVERDRAFT * self.total_s - CLOSING_S

    @property
    def wait_s(self) -> float:
        """Seconds that a search may still wait for anything, with time left to close the program.

        Most programs close within ``ENDING_S``. In a short budget, one that must be killed would
        exceed even the overdraft, so the wait ends earlier there.
        """
        return min(self.left_s - ENDING_S, self.overdraft_s)


@dataclass(frozen=True)
class Until:
    """Callable that says how long work may go on; a ``ShouldStop`` that also knows its time.

    A rig calls it many times a second while it waits for the program. Code that plans turns
    reads the remaining time with ``seconds_left()``.

    Attributes:
        stopped: Returns the Ending that the user requested, None if there was no request.
        left_s: Returns the seconds left.
        reason: Reason of the Ending when no time is left, as users read it.
    """

    stopped: Callable[[], Ending | None]
    left_s: Callable[[], float]
    reason: str

    def __call__(self) -> Ending | None:
        """Return why the work must end now; None while it may go on.

        A request of the user comes before a lack of time.
        """
        if ending := self.stopped():
            return ending
        return Ending(Outcome.OUT_OF_TIME, self.reason) if self.left_s() <= 0 else None


def seconds_left(should_stop: Callable[[], Ending | None]) -> float:
    """Return how long work may go on; infinite if *should_stop* has no time limit.

    Only an ``Until`` has one. ``autotune doctor``, for example, passes a function that knows only
    Ctrl-C.
    """
    return should_stop.left_s() if isinstance(should_stop, Until) else math.inf
