"""Every error a user can meet; the command line turns each into an exit code and one message.

    AutotuneError                   exit code 2: what was asked for cannot be done
    ├── UsageError                  an option, name or value is wrong
    │   ├── FileFormatError         a YAML file is wrong (all its faults in one message)
    │   ├── RunDirectoryError       the run directory is missing, in use, or another program's
    │   └── FenceError              nothing here protects the user's files from trials
    ├── ProgramError                the program itself fails, or never trains a step
    ├── BudgetError                 the budget ends before the baseline is measured
    └── RigError                    a rig could not be started or spoke nonsense (ours to mend)

Each message says what is wrong, the value, and the mend.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AutotuneError(Exception):
    """Base of all errors that autotune raises on purpose."""


class UsageError(AutotuneError):
    """An option, a name or a value that the user gave is wrong."""


class FileFormatError(UsageError):
    """A file that the user gave cannot be read as what it should be."""


class RunDirectoryError(UsageError):
    """The run directory is missing, in use by a living search, or holds another program."""


class FenceError(UsageError):
    """The system offers nothing that keeps trials from changing the user's files."""


class ProgramError(AutotuneError):
    """The user's program failed by itself or did not train; carries its own traceback."""

    def __init__(self, message: str, program_traceback: str = "") -> None:
        super().__init__(message)
        self.program_traceback = program_traceback


class BudgetError(AutotuneError):
    """The budget is too short to measure anything."""


class RigError(AutotuneError):
    """A rig did not start or did not keep the protocol."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the nearest known name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""
