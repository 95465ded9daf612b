"""Notes which files a thread opens to read, and measures what opening and reading them costs."""

from __future__ import annotations

import os
import stat
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

MOST_REPLAY_S = 0.3
CHUNK = 1 << 20


@dataclass(frozen=True)
class ThreadIo:
    """The kernel's counters of what a thread has read (proc(5), io).

    Attributes:
        read_bytes: Bytes that it got from reading, cached ones included.
        disk_bytes: Bytes that came from a disk.
    """

    read_bytes: int = 0
    disk_bytes: int = 0

    @classmethod
    def now(cls) -> ThreadIo:
        """Return the counters of this thread; zeros where the kernel has none."""
        try:
            text = Path(f"/proc/self/task/{threading.get_native_id()}/io").read_text("ascii")
        except OSError:
            return cls()
        values = dict(line.split(": ") for line in text.splitlines())
        return cls(int(values["rchar"]), int(values["read_bytes"]))


class Opened(NamedTuple):
    """A file that was opened to read.

    Attributes:
        path: Its path.
        is_file_object: Whether by Python's ``open()``, as opposed to ``os.open()``.
    """

    path: str
    is_file_object: bool


class FileReads:
    """Notes the files that this thread opens to read, while ``is_on``.

    Python cannot remove an audit hook again. The process that is examined ends soon, and the hook
    does nothing while ``is_on`` is False.

    Not covered: files that libraries open without Python.
    """

    def __init__(self) -> None:
        self.opened: list[Opened] = []
        self.is_on = False
        self._thread = threading.get_ident()
        sys.addaudithook(self._audit)

    def replay_s(self, bytes_per_open: float) -> float:
        """Return the seconds that opening and reading these files again takes: all are cached.

        Those that the program opened by ``os.open()`` are read without a buffer, which takes less
        time to open.

        Args:
            bytes_per_open: What was read of each file on average; no more is read now.
        """
        began, replayed = perf_counter(), 0
        for one in self.opened:
            if perf_counter() - began > MOST_REPLAY_S:
                break
            replayed += 1
            with suppress(OSError):
                _read(one, int(bytes_per_open))
        took_s = perf_counter() - began
        return took_s * len(self.opened) / replayed if replayed else 0.0

    def _audit(self, event: str, args: tuple[object, ...]) -> None:
        if not self.is_on or event != "open" or threading.get_ident() != self._thread:
            return
        path, mode, flags = args
        is_read = isinstance(flags, int) and flags & os.O_ACCMODE == os.O_RDONLY
        if is_read and isinstance(path, str | os.PathLike):
            self.opened.append(Opened(os.fspath(path), mode is not None))


def _read(opened: Opened, most_bytes: int) -> None:
    buffering = -1 if opened.is_file_object else 0
    with open(opened.path, "rb", buffering, opener=_never_waiting) as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # a device may never end
            while most_bytes > 0 and (got := file.read(min(CHUNK, most_bytes))):
                most_bytes -= len(got)


def _never_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
