"""Tells how much of a thread's computing passes in functions that are written in C."""

from __future__ import annotations

import sys
from time import thread_time
from types import FrameType
from typing import Any, Self

SHORT_S = 5e-6  # a shorter call belongs to the Python code around it: len(), append()


class NativeShare:
    """A profile of calls in the thread that enters it (``sys.setprofile``), which slows it down.

    Waiting does not count: only the CPU time of the thread does. Operators on arrays, such as
    ``a * b``, are no calls and count as Python; ``ThreadSampler`` sees most of them.

    Attributes:
        native_s: CPU seconds in C functions, without the Python functions that they call.
        total_s: CPU seconds in all.
    """

    def __init__(self) -> None:
        self.native_s = self.total_s = 0.0
        self._calls: list[float | None] = []  # CPU seconds of C functions so far; None for Python
        self._since = 0.0
        self._before: Any = None

    @property
    def share(self) -> float:
        """The native part of the computing, from 0 to 1."""
        return self.native_s / self.total_s if self.total_s else 0.0

    def __enter__(self) -> Self:
        self._before = sys.getprofile()
        self._since = thread_time()
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)
        self._count()

    def _count(self) -> None:
        now = thread_time()
        elapsed_s, self._since = now - self._since, now
        self.total_s += elapsed_s
        if self._calls and (own := self._calls[-1]) is not None:
            self._calls[-1] = own + elapsed_s

    def _event(self, _frame: FrameType, event: str, _arg: object) -> None:
        self._count()
        match event:
            case "call":
                self._calls.append(None)
            case "c_call":
                self._calls.append(0.0)
            case _ if self._calls:
                own = self._calls.pop()
                if own is not None and own > SHORT_S:
                    self.native_s += own
        self._since = thread_time()
