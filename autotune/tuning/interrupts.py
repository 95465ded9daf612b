"""InterruptCounter: turns Ctrl-C into a request that the search answers when it can.

A search must close its rigs and write its result, so Ctrl-C may not raise at any line. The first
one ends the search, the second also skips the confirmation, the third raises as usual.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

ENDING = "Ending; what was measured until now counts."  # for commands that confirm nothing


class InterruptCounter:
    """Context manager that counts Ctrl-C instead of raising ``KeyboardInterrupt``.

    The third Ctrl-C raises at once, for the case that a request is not answered. Outside of the
    main thread nothing is counted, because Python lets only that thread set signal handlers.

    Args:
        on_request: Called with the count at the first and the second Ctrl-C, in the signal handler.

    Attributes:
        requests: Number of Ctrl-C since this was entered.
    """

    def __init__(self, on_request: Callable[[int], None] = lambda _: None) -> None:
        self.requests = 0
        self._on_request = on_request
        self._previous: Any = None

    def __enter__(self) -> Self:
        # signal.signal() raises in other threads, such as a notebook's or a server's worker
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.requests += 1
        if self.requests > 2:
            raise KeyboardInterrupt
        self._on_request(self.requests)
