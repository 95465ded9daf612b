"""Every error that autotune raises on purpose.

The command line turns each into one message and an exit code.

    AutotuneError                   exit code 2: the request cannot be carried out
    ├── UsageError                  an option, name or value is wrong
    │   ├── FileFormatError         a YAML file is wrong (all its faults in one message)
    │   ├── RunDirectoryError       the run directory is missing, in use, or another program's
    │   └── FenceError              no mechanism here protects the user's files from trials
    ├── RecordError                 the record of a search cannot be read or written
    ├── SharedStudyError            the study of several machines cannot be used from here
    ├── OutOfReachError             it cannot be reached now; to try again is worthwhile
    ├── UnmeasuredError             the program was not measured as it is written
    │   ├── ProgramError            the program itself fails, never trains a step, or was edited
    │   │   └── NothingMeasured     exit code 130: Ctrl-C came before there was a result
    │   └── BudgetError             the budget ends before it is measured
    └── RigError                    a rig broke the protocol, which is a defect of autotune
    Terminated (a SystemExit)       exit code 128 + signal: SIGTERM or SIGHUP has ended the work

Each message says what is wrong, quotes the value, and says how to fix it.
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable, Mapping
from typing import Any, Self, TypeVar

Member = TypeVar("Member")

# How the message of a RigError begins, unless the user can mend what happened
DEFECT = "This is a defect of autotune; please report it: "


class AutotuneError(Exception):
    """Base class of all errors that autotune raises on purpose."""


class UsageError(AutotuneError):
    """An option, a name or a value that the user gave is wrong."""


class FileFormatError(UsageError):
    """A file that the user gave does not have the required format.

    The message lists all faults of the file with their lines.
    """


class RunDirectoryError(UsageError):
    """The run directory is missing, in use by a running search, or belongs to another program."""


class RecordError(AutotuneError):
    """The record of a search cannot be read or written: locked, damaged, on a full disk, and such.

    What a running search has measured is in memory all the same.
    """


class SharedStudyError(AutotuneError):
    """The study of several machines cannot be used from here, and trying again changes nothing.

    Such as a refused password, a missing database, or another version of Optuna's tables.
    """


class OutOfReachError(AutotuneError):
    """The study of several machines cannot be reached now; what failed may be tried again.

    Whether it took effect is not known: an answer may be lost after the work was done.
    """


class FenceError(UsageError):
    """The system offers no mechanism that keeps trials from changing the user's files."""


class UnmeasuredError(AutotuneError):
    """A program was not measured as it is written; the text has all that follows.

    Attributes:
        headline: What happened, in one line.
        program_traceback: The program's own traceback, or else the last that it printed; empty if
            it said nothing.
        alone: What it does without autotune, as a clause; empty if that was not tried.
        mend: What to do, as sentences.
        command: What to type next.
    """

    def __init__(
        self,
        headline: str,
        program_traceback: str = "",
        *,
        alone: str = "",
        mend: str = "",
        command: str = "",
    ) -> None:
        tried = f"Without autotune {alone}." if alone else ""
        typed = f"  {command}" if command else ""
        super().__init__("\n".join(filter(None, (headline, tried, mend, typed))))
        self.headline, self.program_traceback = headline, program_traceback
        self.alone, self.mend, self.command = alone, mend, command

    def of(self, side: str) -> Self:
        """Return the error of one of several programs, which it names."""
        told = {"alone": self.alone, "mend": self.mend, "command": self.command}
        return type(self)(f"{side}: {self.headline}", self.program_traceback, **told)


class ProgramError(UnmeasuredError):
    """The user's program fails by itself, does not train, or was edited while it was measured."""


class NothingMeasured(ProgramError):
    """Ctrl-C ended the work before the program, as it is written, was measured."""


class BudgetError(UnmeasuredError):
    """The budget ended before the program was measured as it is written."""


class RigError(AutotuneError):
    """A rig did not keep the protocol between it and its parent."""


class Terminated(SystemExit):
    """A signal that asks a process to end has ended what autotune did.

    Everything is closed by then. Not caught, it ends the process, as the signal asked.

    Attributes:
        code: 128 + the signal, as shells report it.
        result: The ``SearchResult`` of what a search had measured; None of other work, and where
            the baseline was not measured yet.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGHUP)
    code: int

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.reason = f"ended by {signal.Signals(number).name}"
        self.result: Any = None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the most similar known name, or an empty string.

    The text begins with a space, so that a message can append it to a sentence.
    """
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


def named(noun: str, name: str, members: Mapping[str, Member]) -> Member:
    """Return a member of a family by the name that users type.

    Args:
        noun: What members are called, such as ``format``.
        name: As it was typed.
        members: All members by their names.

    Raises:
        UsageError: There is no such member; the message lists those that there are.
    """
    if name not in members:
        raise UsageError(
            f"There is no {noun} '{name}'.{did_you_mean(name, members)} "
            f"{noun.capitalize()}s: {', '.join(members)}."
        )
    return members[name]
