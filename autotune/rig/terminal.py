"""Terminal: a pseudo-terminal for programs that train only if they have one.

Some programs ask for the size of the terminal or open ``/dev/tty``, and fail without. This terminal
is the standard input, output and error of a rig. What the program prints is appended to the rig's
log unchanged. Nobody types: every read is answered with end-of-file. If the parent dies, the kernel
closes the terminal and sends SIGHUP to the rig. Not covered: ``/dev/tty`` in ranks, each of which
is in a new session; a program that waits for a certain key.
"""

from __future__ import annotations

import fcntl
import os
import select
import termios
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from autotune.files.access import log_file
from autotune.program.printed import last_line

ROWS, COLUMNS = 40, 120
END_OF_FILE = b"\x04"  # ^D; each one ends a single read
POLL_S = 0.05  # a read of the program waits at most this long for its end-of-file
SETTLE_S = 1.0  # a program that goes on printing is not waited for longer
TAIL_BYTES = 2000


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

    Attributes:
        theirs: File descriptor of the program's side, for its standard input, output and error.

    Raises:
        OSError: when the system has no pseudo-terminal left.
    """

    def __init__(self, log: Path) -> None:
        self._ours, self.theirs = os.openpty()
        termios.tcsetwinsize(self.theirs, (ROWS, COLUMNS))
        mode = termios.tcgetattr(self.theirs)
        mode[1] &= ~termios.OPOST  # else each newline would come as carriage return and newline
        mode[3] &= ~termios.ECHO
        termios.tcsetattr(self.theirs, termios.TCSANOW, mode)
        self._log = log_file(log)
        self._tail = b""
        self._reads, self._read_at_s = 0, 0.0
        self._is_closing, self._is_empty = False, threading.Event()
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
        """Wait until what a process that has ended left in the terminal is in the log."""
        self._is_empty.clear()
        self._is_empty.wait(SETTLE_S)

    def close(self) -> None:
        """Write the rest to the log, end the thread and close both sides.

        Call it after the program has ended, because closing sends SIGHUP to what still uses it.
        """
        self._is_closing = True
        self._thread.join()
        self._log.close()
        os.close(self.theirs)
        os.close(self._ours)

    def _run(self) -> None:
        """Empty the output, which would block the program if it were full, and refill the input.

        No call tells when the program consumes an end-of-file, so the input is polled.
        """
        unread = select.poll()
        unread.register(self.theirs, select.POLLIN)
        while True:
            if select.select([self._ours], [], [], POLL_S)[0]:
                printed = os.read(self._ours, 1 << 16)
                self._tail = (self._tail + printed)[-TAIL_BYTES:]
                with suppress(OSError):  # a full disk must not stall the program
                    self._log.write(printed)
            else:
                self._is_empty.set()
                if self._is_closing:
                    return
            if not unread.poll(0) and select.select([], [self._ours], [], 0)[1]:
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
