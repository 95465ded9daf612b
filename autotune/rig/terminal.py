"""Terminal: a pseudo-terminal for a program that trains only where it has one; nobody types there.

It is the input, the output and the error output of a rig. What the program prints goes to the rig's
log as it was printed; whatever it reads is answered by the end of the input. When this process
dies, the kernel hangs the terminal up, and sends SIGHUP to the rig.

Covered: ``os.get_terminal_size()``, ``stty size``, ``/dev/tty``, ``isatty``, progress bars, prompts
in a row, passwords, programs that change the terminal's mode. Not covered: ``/dev/tty`` in ranks,
each of which has a session of its own; a program that waits for a certain key.
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
END_OF_FILE = b"\x04"  # ^D: one serves one read
POLL_S = 0.05  # how long a read waits for its answer at most
SETTLE_S = 0.02  # the kernel hands on what was printed within microseconds; a busy one takes longer
CHUNK_BYTES = 1 << 16
TAIL_BYTES = 2000
USUAL_TYPE = "xterm"


@dataclass(frozen=True)
class Asked:
    """A program read its input, which is empty.

    Attributes:
        prompt: The line that it had printed last.
        at_s: When it last did, by ``monotonic()``.
        times: How often; in a terminal, a change of its mode that empties the input counts, too.
    """

    prompt: str
    at_s: float
    times: int


class Terminal:
    """One pseudo-terminal, with a thread of its own that keeps it empty.

    Args:
        log: The file to which what is printed is appended.

    Attributes:
        theirs: The side that the program gets as its files 0, 1 and 2.
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
        """What stood on the screen, of a program that read its input; None where it did not."""
        if not self._reads:
            return None
        return Asked(last_line(self._tail.decode(errors="replace")), self._read_at_s, self._reads)

    def settle(self) -> None:
        """Wait until the log has what a process printed that has ended."""
        while self._pump():
            select.select([self._ours], [], [], SETTLE_S)

    def close(self) -> None:
        """Hang up; the program has ended."""
        self._ended.set()
        self._thread.join()
        with suppress(OSError):
            self.settle()
        self._log.close()
        os.close(self.theirs)
        os.close(self._ours)

    def _run(self) -> None:
        """Keep the output empty, for a full one would stall the program, and the input at its end.

        What the kernel holds for the program's next read cannot be waited for: it is looked at.
        """
        while not self._ended.is_set():
            select.select([self._ours], [], [], POLL_S)
            self._pump()
            if not self._input.poll(0):
                self._answer()

    def _pump(self) -> bool:
        """Move what was printed to the log; tell whether there was anything."""
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
        with suppress(BlockingIOError):
            os.write(self._ours, END_OF_FILE)
            self._reads, self._read_at_s = self._reads + 1, monotonic()


def is_available() -> bool:
    """Tell whether this system has a pseudo-terminal to give: a bare container may have none."""
    try:
        sides = os.openpty()
    except OSError:
        return False
    for side in sides:
        os.close(side)
    return True


def take() -> None:
    """Make standard input the terminal of this session, where it is one and this process began it.

    So that ``/dev/tty`` leads to it, and a hang-up is heard.
    """
    if os.isatty(0):
        with suppress(OSError):  # the session has one, or another session has this one
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what must stand in the environment of a process that gets such a terminal.

    Its type is that of the user's own terminal, in which the program is known to work. A shell
    that exports the size of its own would contradict this one's.
    """
    sizes = {"COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    told = {name: size for name, size in sizes.items() if name in environment}
    return told if environment.get("TERM") else {**told, "TERM": USUAL_TYPE}


def _make_plain(side: int) -> None:
    """Echo nothing, and hand on what is printed as it is: no newline becomes two characters."""
    mode = termios.tcgetattr(side)
    mode[1] &= ~termios.OPOST
    mode[3] &= ~termios.ECHO
    termios.tcsetattr(side, termios.TCSANOW, mode)
