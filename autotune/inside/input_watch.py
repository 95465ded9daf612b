"""Watches standard input, which is empty in a rig: who reads it wants an answer that nobody gives.

Covered: all that reads by Python's ``sys.stdin``: ``input()``, loops over it, getpass without a
terminal, click. Not covered: reads of file 0 by other ways, and programs with a terminal, whose
reads the parent sees.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from autotune.program.printed import last_line

MAX_TOLD = 100  # a program that reads in a loop says no more than that
TAIL_BYTES = 1000
OUTPUT = Path("/proc/self/fd/1")


class WatchedInput(io.FileIO):
    """File 0, which tells of each read; the program calls it, on any thread, by ``sys.stdin``.

    Args:
        told: Called with the line that the program printed last.
    """

    def __init__(self, told: Callable[[str], None]) -> None:
        super().__init__(0, "rb", closefd=False)
        self.name: Any = "<stdin>"
        self._told = told
        self._times = 0
        self._process = os.getpid()

    def readinto(self, buffer: Any, /) -> int | None:
        """Read; what comes in pieces is read by this."""
        self._tell()
        return super().readinto(buffer)

    def readall(self) -> bytes:
        """Read all."""
        self._tell()
        return super().readall()

    def _tell(self) -> None:
        """Say it before the answer: the program may end by that."""
        if os.getpid() == self._process and self._times < MAX_TOLD:  # no loader worker's copy
            self._times += 1
            self._told(_printed())


def watch_input(told: Callable[[str], None]) -> None:
    """Let ``sys.stdin`` tell of reads, unless it is a terminal.

    Args:
        told: Called with the line that the program printed last.
    """
    usual = sys.stdin
    if usual is None or os.isatty(0):
        return
    watched = io.TextIOWrapper(
        io.BufferedReader(WatchedInput(told)),
        encoding=usual.encoding,
        errors=usual.errors,
        line_buffering=bool(usual.line_buffering),
    )
    vars(watched)["mode"] = "r"  # the interpreter says so of its own, too
    sys.stdin = watched


def _printed() -> str:
    """Return the last line of the log, which is our output; empty where it cannot be read."""
    with suppress(OSError, ValueError, AttributeError):  # sys.stdout may be anything by now
        sys.stdout.flush()
        sys.stderr.flush()
        with OUTPUT.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            return last_line(log.read().decode(errors="replace"))
    return ""
