"""Tell the parent when the program reads its standard input, which is empty in a rig.

Not covered: reads of file descriptor 0 by other means than ``sys.stdin``, and programs with a
terminal, whose reads the parent sees itself.
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

MAX_TOLD = 100  # reports per process; a program may read in an endless loop
TAIL_BYTES = 1000
OUTPUT = Path("/proc/self/fd/1")


class WatchedInput(io.FileIO):
    """The raw file behind ``sys.stdin``, which reports each read."""

    def __init__(self, told: Callable[[str], None]) -> None:
        super().__init__(0, "rb", closefd=False)
        self.name: Any = "<stdin>"
        self._told = told
        self._times = 0
        self._process = os.getpid()

    def readinto(self, buffer: Any, /) -> int | None:
        """Report the read, then read into *buffer*; buffered readers call this method."""
        self._tell()
        return super().readinto(buffer)

    def readall(self) -> bytes:
        """Report the read, then read everything; called by ``sys.stdin.read()``."""
        self._tell()
        return super().readall()

    def _tell(self) -> None:
        # Before the read, because the program may end when it gets no answer; forked processes,
        # such as loader workers, must not write to the rig's connection
        if os.getpid() == self._process and self._times < MAX_TOLD:
            self._times += 1
            self._told(_printed())


def watch_input(told: Callable[[str], None]) -> None:
    """Replace ``sys.stdin`` by one that reports reads, unless it is a terminal or missing.

    Args:
        told: Called before each read with the line that the program printed last, which is usually
            the prompt.
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
    vars(watched)["mode"] = "r"  # the interpreter sets it on its own sys.stdin, too
    sys.stdin = watched


def _printed() -> str:
    """Return the last line of the rig's log, where our output goes; empty if it cannot be read.

    The prompt of ``input()`` need not end with a newline, so the buffers are flushed first.
    """
    # The program may have closed sys.stdout, or replaced it by any object.
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        sys.stderr.flush()
        with OUTPUT.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            return last_line(log.read().decode(errors="replace"))
    return ""
