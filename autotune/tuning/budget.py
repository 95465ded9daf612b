"""Budget: the wall time of a search, how users write it, and how long work may go on.

A search must close its rigs and write its result, so no signal may raise at any line: it is
noted, and answered when that is possible.

Every wait in a search asks an ``Until``, which leaves enough time to close the program that runs.
"""

from __future__ import annotations

import math
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from types import FrameType
from typing import Any, Self

from autotune.errors import AutotuneError, Terminated, UsageError
from autotune.measurement.outcome import Ending, Outcome

SECONDS = {"s": 1, "m": 60, "h": 3600}
# Share of the budget by which a search may exceed it, so that a confirmation under way can end.
OVERDRAFT = 0.15
# Ending a program that does not react takes 1 s until it is signalled, another until it is killed
# (processes.py), and a moment to write the result.
CLOSING_S = 2.5
ENDING_S = 1.0  # most programs end sooner, so most searches end within their budget
# Batch systems send it to all processes of a job whose time is nearly over, if they are asked to
# (Slurm: sbatch --signal=USR1@120)
LEAVE = signal.SIGUSR1
ENDING = "Ending; what was measured until now counts."  # for commands that confirm nothing


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


class Budget:
    """A wall-time budget that counts down from the moment it is created.

    Earlier sessions of the same run used *spent_s* of it; the clock never goes back.
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
        """Seconds until closing the program must begin, with the overdraft of a confirmation."""
        return self.left_s + OVERDRAFT * self.total_s - CLOSING_S

    @property
    def wait_s(self) -> float:
        """Seconds that a search may still wait for anything, with time left to close the program.

        In a short budget, a program that must be killed would exceed even the overdraft.
        """
        return min(self.left_s - ENDING_S, self.overdraft_s)


@dataclass(frozen=True)
class Until:
    """Callable that says how long work may go on; a ``ShouldStop`` that also knows its time.

    It ends as the user requested (*stopped*), or for *reason* when no time is left.
    """

    stopped: Callable[[], Ending | None]
    left_s: Callable[[], float]
    reason: str

    def __call__(self) -> Ending | None:
        """Return why the work must end now; None while it may go on."""
        if ending := self.stopped():
            return ending
        return Ending(Outcome.OUT_OF_TIME, self.reason) if self.left_s() <= 0 else None


def seconds_left(should_stop: Callable[[], Ending | None]) -> float:
    """Return how long work may go on; infinite if *should_stop* is not an ``Until``."""
    return should_stop.left_s() if isinstance(should_stop, Until) else math.inf


class InterruptCounter:
    """Context manager that counts Ctrl-C instead of raising ``KeyboardInterrupt``.

    The third Ctrl-C raises at once, for the case that a request is not answered. SIGUSR1 asks for
    the end as the first Ctrl-C does, however often it comes. SIGTERM and SIGHUP ask for it as two
    Ctrl-C do; the context then ends by raising ``Terminated``. Where they are ignored, as ``nohup``
    does, they stay so. Outside of the main thread nothing is handled,
    because Python lets only that thread set signal handlers.

    *on_request* is called with the count at the first and the second Ctrl-C, in the signal handler.

    Attributes:
        requests: Two end the work at once, and skip a confirmation.
        cut: What ended the work instead of the user's Ctrl-C, as a clause; empty if nothing did.
        result: What a ``Terminated`` that comes from here shall hold.
    """

    def __init__(self, on_request: Callable[[int], None] = lambda _: None) -> None:
        self.requests = 0
        self.cut = ""
        self.result: Any = None
        self._raised: Exception | Terminated | None = None
        self._has_to_leave = False
        self._on_request = on_request
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # signal.signal() raises in other threads, such as a notebook's or a server's worker
        if threading.current_thread() is threading.main_thread():
            asking = (LEAVE, *Terminated.SIGNALS)
            heeded = [n for n in asking if signal.getsignal(n) is not signal.SIG_IGN]
            for number in (signal.SIGINT, *heeded):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        for number, previous in self._previous.items():
            if previous is not None:  # one that Python did not set cannot be set by it
                signal.signal(number, previous)
        if self._raised is None or not (error is None or isinstance(error, AutotuneError)):
            return
        if isinstance(self._raised, Terminated):
            self._raised.result = self.result
        raise self._raised

    @property
    def is_urgent(self) -> bool:
        """Whether this process may soon be killed, as a signal has asked it to end."""
        return isinstance(self._raised, Terminated)

    @property
    def signalled(self) -> Ending | None:
        """Why the work ends, after a signal that the program's processes may have got as well."""
        return self.ending() if self._has_to_leave or self.is_urgent else None

    def end(self, reason: str, *, raised: Exception | Terminated | None = None) -> None:
        """End the work as two Ctrl-C do; *reason* is a clause, and the first one stands.

        Args:
            raised: Raised when the context is left.
        """
        self.requests = max(2, self.requests)
        self.cut, self._raised = self.cut or reason, self._raised or raised

    def ending(self) -> Ending | None:
        """Return that somebody has asked for the end; None if not."""
        asked = f"asked to leave by {LEAVE.name}" if self._has_to_leave else "stopped by Ctrl-C"
        reason = self.cut or asked
        return Ending(Outcome.INTERRUPTED, reason) if self.requests else None

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == LEAVE:
            self._has_to_leave = True
            if not self.requests:
                self.requests = 1
                self._on_request(1)
            return
        if number != signal.SIGINT:
            end = Terminated(number)
            self.end(end.reason, raised=end)
            return
        self.requests += 1
        if self.requests > 2:
            raise KeyboardInterrupt
        self._on_request(self.requests)


@dataclass(frozen=True)
class Missed:
    """What a budget does not hold, and about the least one that does, in seconds.

    It is infinite where no budget of a week does.
    """

    what: str
    budget_s: float


@dataclass(frozen=True)
class Reach:
    """What a budget holds.

    Attributes:
        tried: Settings of which other values are tried.
        missed: Settings of which the budget has no time to try other values.
        spare: Settings that are tried if the others leave time: each value takes fresh processes,
            and the user did not ask for it.
    """

    tried: tuple[str, ...] = ()
    missed: tuple[Missed, ...] = ()
    spare: tuple[str, ...] = ()
