"""What every executor does: it starts one command line several times, and tells what became of it.

An executor repeats the very line that a user could type on each machine, and nothing else: no code
is pickled, no file is copied, nobody is logged in by ssh. What the members measure, and whether
they live, is told by their shared study; an executor knows only what its queue says of them.
"""

from __future__ import annotations

import argparse
import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NoReturn

from autotune.errors import UsageError


@dataclass(frozen=True)
class Submission:
    """What became of a line that was handed over.

    Attributes:
        handles: What the members are called where they run, such as ``job 41_1``, as printed.
        ending: How the members are ended, as a sentence with the line to type; empty if unknown.
        manifest: Text for stdout, where the executor starts nothing itself; else empty.
        outlives_us: Whether the members go on when this process ends.
    """

    handles: tuple[str, ...] = ()
    ending: str = ""
    manifest: str = ""
    outlives_us: bool = True


class Executor(ABC):
    """One way of starting a line on several machines.

    Attributes:
        name: As it is typed after ``--executor``.
        usage: What may follow the name, for help and errors.
    """

    name: ClassVar[str]
    usage: ClassVar[str]

    def __init__(self, options: str) -> None:
        """Take what was typed after the name.

        Raises:
            UsageError: It is wrong; the message says what to type.
        """
        if options:
            raise UsageError(f"'{self.name}' takes nothing: --executor {self.usage}")

    @abstractmethod
    def submit(self, line: Sequence[str], count: int) -> Submission:
        """Start a line so many times.

        Args:
            line: Of one member, ``autotune search --storage URL --name X -- …``, as words. It holds
                no password.

        Raises:
            UsageError: It cannot be started; the message says what is missing.
        """

    @abstractmethod
    def unfinished(self) -> Collection[str] | None:
        """Return the handles of members that run, or wait to; None where nobody can be asked."""

    def password_note(self) -> str:
        """Return a warning if the members would have no password of their PostgreSQL server.

        An executor never passes one on: a job inherits the submitter's environment. Passwords are
        looked for where PostgreSQL's client library does (libpq, "The Password File").
        """
        file = Path(os.environ.get("HOME", "/")) / ".pgpass"
        if any(map(os.environ.get, ("AUTOTUNE_STORAGE", "PGPASSFILE"))) or file.is_file():
            return ""
        return (
            "Neither AUTOTUNE_STORAGE nor PGPASSFILE is set here: if the server asks the workers "
            "for a password, set one of them."
        )


class OptionParser(argparse.ArgumentParser):
    """Reads what was typed after an executor's name."""

    def __init__(self, executor: type[Executor]) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self._executor = executor

    def words(self, options: str) -> list[str]:
        """Return options as a shell splits them.

        Raises:
            UsageError: A quotation does not end.
        """
        try:
            return shlex.split(options)
        except ValueError as error:
            self.error(f"{error}")

    def error(self, message: str) -> NoReturn:
        """Refuse what was typed."""
        typed = f"--executor {self._executor.usage}"
        raise UsageError(f"--executor {self._executor.name}: {message}. Type: {typed}")
