"""Terminal: a pseudo-terminal for programs that train only if they have one.

Some programs ask for the size of the terminal or open ``/dev/tty``, and fail without. This terminal
is the standard input, output and error of a rig. What the program prints is appended to the rig's
log unchanged. Nobody types: every read is answered with end-of-file. If the parent dies, the kernel
closes the terminal and sends SIGHUP to the rig.

Covered: ``os.get_terminal_size()``, ``stty size``, ``/dev/tty``, ``isatty``, progress bars, several
prompts in a row, passwords, programs that change the terminal's mode. Not covered: ``/dev/tty`` in
ranks, each of which is in a new session; a program that waits for a certain key.
"""

from __future__ import annotations

import fcntl
import os
import select
import termios
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from autotune.program.printed import last_line

ROWS, COLUMNS = 40, 120
END_OF_FILE = b"\x04"  # ^D; each one ends a single read
POLL_S = 0.05  # a read of the program waits at most this long for its end-of-file
SETTLE_S = 0.02  # printed text arrives within microseconds, but later on a busy machine
CHUNK_BYTES = 1 << 16
TAIL_BYTES = 2000
USUAL_TYPE = "xterm"


@dataclass(frozen=True)
class Asked:
    """The fact that a program read its standard input, which is empty in a trial.

    Attributes:
        prompt: The line that it had printed last, which is probably the question.
        at_s: Time of the last read, by ``monotonic()``.
        times: Number of reads. In a terminal, a change of mode that discards the input counts too.
    """

    prompt: str
    at_s: float
    times: int


class Terminal:
    """A pseudo-terminal and the thread that empties its output and answers reads.

    The thread runs in the parent process until ``close()``.

    Args:
        log: File to which the program's output is appended.

    Attributes:
        theirs: File descriptor of the program's side, for its standard input, output and error.

    Raises:
        OSError: when the system has no pseudo-terminal left.
    """

    def __init__(self, log: Path) -> None:
        self._ours, self.theirs = os.openpty()
        os.set_blocking(self._ours, False)
        termios.tcsetwinsize(self.theirs, (ROWS, COLUMNS))
        _make_plain(self.theirs)
        self._input = select.poll()
        self._input.register(self.theirs, select.POLLIN)
        self._log = log.open("ab", buffering=0)
        self._tail = b""
        self._pumping = threading.Lock()
        self._ended = threading.Event()
        self._reads, self._read_at_s = 0, 0.0
        os.write(self._ours, END_OF_FILE)
        self._thread = threading.Thread(target=self._run, name="terminal", daemon=True)
        self._thread.start()

    @property
    def asked(self) -> Asked | None:
        """The program's last read of its input, with the line on the screen; None if it never read.

        A read shows only by the end-of-file that it consumed.
        """
        if not self._reads:
            return None
        return Asked(last_line(self._tail.decode(errors="replace")), self._read_at_s, self._reads)

    def settle(self) -> None:
        """Write to the log what a process that has ended left in the terminal."""
        while self._pump():
            select.select([self._ours], [], [], SETTLE_S)

    def close(self) -> None:
        """Stop the thread, write the rest to the log, and close both sides.

        Call it after the program has ended, because closing sends SIGHUP to what still uses it.
        """
        self._ended.set()
        self._thread.join()
        with suppress(OSError):
            self.settle()
        self._log.close()
        os.close(self.theirs)
        os.close(self._ours)

    def _run(self) -> None:
        """Empty the output and refill the input with an end-of-file, until ``close()``.

        A full output buffer would block the program. Output can be waited for, but no call tells
        when the program consumes an end-of-file, so the input is polled.
        """
        while not self._ended.is_set():
            select.select([self._ours], [], [], POLL_S)
            self._pump()
            if not self._input.poll(0):
                self._answer()

    def _pump(self) -> bool:
        """Move one chunk of output to the log; return False if there was none.

        Both the thread and ``settle()`` call it, so a lock keeps the chunks in order.
        """
        with self._pumping:
            try:
                printed = os.read(self._ours, CHUNK_BYTES)
            except BlockingIOError:
                return False
            self._tail = (self._tail + printed)[-TAIL_BYTES:]
            with suppress(OSError):  # a full disk must not stall the program
                self._log.write(printed)
        return True

    def _answer(self) -> None:
        with suppress(BlockingIOError):  # the kernel's input queue is full
            os.write(self._ours, END_OF_FILE)
            self._reads, self._read_at_s = self._reads + 1, monotonic()


def is_available() -> bool:
    """Tell whether this system provides pseudo-terminals; a minimal container may not."""
    try:
        sides = os.openpty()
    except OSError:
        return False
    for side in sides:
        os.close(side)
    return True


def take() -> None:
    """Make standard input the controlling terminal of this session, if it is a terminal.

    Only then does ``/dev/tty`` open it, and only then does the kernel send SIGHUP when it closes.
    It has an effect only in the process that began the session.
    """
    if os.isatty(0):
        with suppress(OSError):  # the session has a terminal, or this is another session's
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set for a process that gets this terminal.

    ``TERM`` stays the user's, because the program is known to work in the user's terminal; without
    one it becomes ``xterm``. ``COLUMNS`` and ``LINES`` are set only if the user's shell exports
    them, because they would contradict the size of this terminal.

    Args:
        environment: The environment that the process would inherit.
    """
    sizes = {"COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    told = {name: size for name, size in sizes.items() if name in environment}
    return told if environment.get("TERM") else {**told, "TERM": USUAL_TYPE}


def _make_plain(side: int) -> None:
    """Switch echo and output processing off, so that the log gets exactly what was printed.

    A terminal otherwise writes each newline as carriage return and newline.
    """
    mode = termios.tcgetattr(side)
    mode[1] &= ~termios.OPOST
    mode[3] &= ~termios.ECHO
    termios.tcsetattr(side, termios.TCSANOW, mode)
