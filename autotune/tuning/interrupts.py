"""InterruptCounter: Ctrl-C as a request; once ends the search, twice skips the confirmation."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self


class InterruptCounter:
    """Counts Ctrl-C while it is entered; the third one interrupts at once, as usual.

    Args:
        on_request: Called with the count at each Ctrl-C.
    """

    def __init__(self, on_request: Callable[[int], None] = lambda _: None) -> None:
        self.requests = 0
        self._on_request = on_request
        self._previous: Any = None

    def __enter__(self) -> Self:
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
