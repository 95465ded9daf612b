"""Messages: notes, warnings and errors for a person, on stderr.

Commands that search nothing need no more than this, so it imports little: ``autotune run`` starts a
training with it.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

import typer
from rich.console import Console as RichConsole
from rich.text import Text

from autotune.cli.exit_status import ExitStatus
from autotune.cli.failure_screen import lines_of, printable
from autotune.errors import AutotuneError, NothingMeasured, Terminated, UnmeasuredError

ERROR = Text("autotune: ", style="bold red")
COMMAND = "autotune "  # how a command to copy begins
GONE = {errno.EPIPE, errno.EIO}  # the reader of a pipe; a terminal


class Verbosity(IntEnum):
    """How much is said: warnings and errors; what happens; every reason and detail."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


def verbosity(*, verbose: bool = False, quiet: bool = False) -> Verbosity:
    """Return how much is said with ``--verbose`` or ``--quiet``."""
    if verbose:
        return Verbosity.VERBOSE
    return Verbosity.QUIET if quiet else Verbosity.NORMAL


class Messages:
    """Prints sentences on stderr."""

    def __init__(self, verbosity: Verbosity = Verbosity.NORMAL) -> None:
        self._talk = RichConsole(stderr=True, highlight=False)
        # Elsewhere than on a terminal, a line stays a line
        self._talk.soft_wrap = not self._talk.is_terminal
        self._verbosity = verbosity

    def end(self) -> None:
        """Remove what is shown for the moment only; harmless if there is nothing."""

    def note(self, text: str) -> None:
        """Print a sentence of information."""
        self._say(f"  {plain(text)}")

    def warn(self, text: str) -> None:
        """Print a sentence that the user should not miss."""
        # A line break would be copied along with a command that the sentence names
        soft_wrap = True if COMMAND in text else None
        self._talk.print(f"[yellow]{plain(text)}[/]", soft_wrap=soft_wrap)

    def error(self, message: str) -> None:
        """Print an error."""
        self.end()
        self._talk.print(ERROR + Text(printable(message)), soft_wrap=True)

    def unmeasured(self, error: UnmeasuredError) -> None:
        """Print why a program was not measured: what it printed last, and what to do."""
        self.end()
        first, *others = lines_of(error)
        self._talk.print(ERROR + Text(first), soft_wrap=True)
        for line in others:
            self._talk.print(Text(line), soft_wrap=True)

    def _say(self, markup: str) -> None:
        if self._verbosity > Verbosity.QUIET:
            self._talk.print(markup)

    def _detail(self, text: str) -> None:
        if self._verbosity is Verbosity.VERBOSE:
            self._talk.print(f"  [dim]{plain(text)}[/]")


def outlive_readers() -> None:
    """Let both standard streams lead nowhere once their reader or terminal is gone.

    So ``autotune search 2>&1 | head``, or a terminal that is closed, does not end a search.
    """
    sys.stdout, sys.stderr = _outliving(sys.stdout), _outliving(sys.stderr)


def _outliving(stream: TextIO | None) -> Any:
    if stream is None:  # closed from the start: another file would get its number
        return Path(os.devnull).open("w", encoding="utf-8")
    return _Outliving(stream)


class _Outliving:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:  # its encoding, and whether it is a terminal
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._lenient():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._lenient():
            self._stream.flush()

    @contextmanager
    def _lenient(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # In place of the reader, so that what is buffered can be written when Python ends, too
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            if error.errno not in GONE and self._stream is sys.__stdout__:  # whoever wants it waits
                Messages().error(f"The output cannot be written: {error.strerror}.")
                raise SystemExit(ExitStatus.REFUSED) from None


def plain(value: object) -> str:
    """Return printable text with its square brackets escaped, so that rich sees no markup."""
    return printable(str(value)).replace("[", r"\[")


@contextmanager
def errors_told(messages: Messages, *, resumable: bool = False) -> Iterator[None]:
    """Turn autotune's errors into a message and an exit status, here and nowhere else.

    SIGTERM and SIGHUP end a command as Ctrl-C does: by an exception, so that everything is closed.
    Any other exception passes through: it is a defect of autotune and needs its traceback.

    Args:
        messages: Shows the message.
        resumable: ``autotune resume`` can continue the command after Ctrl-C or a signal.
    """
    mend = " 'autotune resume' goes on from here." if resumable else ""
    before = {
        number: signal.signal(number, _terminate)
        for number in Terminated.SIGNALS
        if signal.getsignal(number) is signal.SIG_DFL
    }
    try:
        yield
    except AutotuneError as error:
        if isinstance(error, UnmeasuredError):
            messages.unmeasured(error)
        else:
            messages.error(str(error))
        is_interrupted = isinstance(error, NothingMeasured)
        status = ExitStatus.INTERRUPTED if is_interrupted else ExitStatus.REFUSED
        raise typer.Exit(status) from None
    except Terminated as end:
        messages.error(f"This command was {end.reason}.{mend}")
        raise typer.Exit(end.code) from None
    except KeyboardInterrupt:
        messages.error(f"Interrupted.{mend}")
        raise typer.Exit(ExitStatus.INTERRUPTED) from None
    finally:
        messages.end()
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated(number)
