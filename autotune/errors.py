"""Every error that autotune raises on purpose.

The command line turns each into one message and an exit code.

    AutotuneError                   exit code 2: the request cannot be carried out
    ├── UsageError                  an option, name or value is wrong
    │   ├── FileFormatError         a YAML file is wrong (all its faults in one message)
    │   ├── RunDirectoryError       the run directory is missing, in use, or another program's
    │   └── FenceError              no mechanism here protects the user's files from trials
    ├── ProgramError                the program itself fails, or never trains a step
    │   └── NothingMeasured         exit code 130: Ctrl-C came before there was a result
    ├── BudgetError                 the budget ends before the baseline is measured
    └── RigError                    a rig broke the protocol, which is a defect of autotune

Each message says what is wrong, quotes the value, and says how to fix it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

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


class FenceError(UsageError):
    """The system offers no mechanism that keeps trials from changing the user's files."""


class ProgramError(AutotuneError):
    """The user's program fails by itself, or does not train.

    Attributes:
        program_traceback: The program's own traceback, which is shown before the message; empty if
            it raised nothing.
    """

    def __init__(self, message: str, program_traceback: str = "") -> None:
        super().__init__(message)
        self.program_traceback = program_traceback


class NothingMeasured(ProgramError):
    """Ctrl-C ended the work before the program, as it is written, was measured."""


class BudgetError(AutotuneError):
    """The budget ended before the baseline was measured."""


class RigError(AutotuneError):
    """A rig did not keep the protocol between it and its parent."""


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
