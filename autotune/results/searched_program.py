"""Searched program: whether a program is the one that a search was of, and what it has changed."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from autotune.files import access
from autotune.program.program import Program
from autotune.program.sources import Files, digest_of, listed

MAX_RESULT_BYTES = 50_000_000  # 2,000 imports and 10,000 trials have some 10 MB
DIGITS = 12  # of a SHA-256, which tell an edited file from the one before
# A checkout of torch has 3,000 modules; what is more than this would not be read
MOST_IMPORTS = 2000


@dataclass(frozen=True)
class SearchedProgram:
    """What a best.yaml says of its program.

    Attributes:
        command: The command line that was searched.
        digest: The first digits of the SHA-256 of its source; empty if it is not known.
        date: When the search began.
    """

    command: str
    digest: str
    date: str

    def change(self, program: Program, records: Sequence[Path]) -> str:
        """Return how a program differs from the one that was searched; empty if it does not.

        Args:
            records: Where the search's result may be, which lists what the program imported.
        """
        is_same = self.digest in {"", program.fingerprint[:DIGITS]}
        if not is_same and _is_of_another_file(self.command, program):
            return (
                f"{program.file_name} is another program than the one that was searched "
                f"({self.command}). Another config may be faster for it; search again."
            )
        edited = _edited(self._imports(records), program)
        if is_same and not edited:
            return ""
        names = listed([*map(shown, edited)])
        which = f" Of what it imports: {names}." if names else ""
        return (
            f"The program has changed since the search ({self.command}).{which} "
            "Search again if the change matters to speed."
        )

    def _imports(self, records: Sequence[Path]) -> Mapping[str, Any]:
        """Return the files that the program imported in the search, where its result is found."""
        for file in records:
            try:
                found = json.loads(access.read(file, MAX_RESULT_BYTES))
                if found["date"] == self.date:
                    return dict(found["program"]["imports"])
            except (OSError, ValueError, LookupError, TypeError):  # gone, or somebody else's
                continue
        return {}

    def is_same(self, program: Program) -> bool:
        """Return whether the search was of a program, which may have changed or other arguments."""
        if program.fingerprint[:DIGITS] == self.digest and not program.function:
            return True
        ours, theirs = (_subject(line, program.cwd) for line in (str(program), self.command))
        return ours == theirs


def _subject(command: str, cwd: str) -> tuple[str, ...]:
    """Return what a command line runs: a script with its function, or a module; else the line.

    A script after a module belongs to it: the module may be a launcher, such as torch's.
    """
    module: tuple[str, ...] = ()
    for before, word in pairwise(["", *shlex.split(command)]):
        path, _, function = word.partition(":")
        if before == "-m" and not module:
            module = (word,)
        elif path.endswith(".pkl"):  # in the folder of a search, each of which has another one
            return (Path(path).name, function)
        elif path.endswith(".py"):
            return (*module, os.path.normpath(Path(cwd, path)), function)
    return module or (command,)


def _is_of_another_file(command: str, program: Program) -> bool:
    """Return whether a command names a Python file to run that is not that of a program."""
    names = {Path(_subject(command, program.cwd)[0]).name, program.file_name}
    return len(names) > 1 and all(name.endswith(".py") for name in names)


def _edited(imports: Mapping[str, Any], program: Program) -> list[str]:
    """Return which imports of a program have another content now; those that are gone do not.

    The file may have been moved, alone, to where they are elsewhere.
    """
    now = {str(name): digest_of(Path(program.cwd, str(name))) for name in imports}
    return [name for name, digest in now.items() if digest and digest[:DIGITS] != imports[name]]


def imports_of(program: Program, files: Files) -> dict[str, str]:
    """Return what a best.yaml says of the files that a program has imported, the nearest first."""
    imports = {
        os.path.relpath(path, program.cwd): digest[:DIGITS]
        for path, digest in files.items()
        if path not in program.files
    }
    nearest = sorted(imports.items(), key=lambda one: (one[0].startswith(os.pardir), one[0]))
    return dict(nearest[:MOST_IMPORTS])


def shown(value: str) -> str:
    """Return a value for a message: quoted if it is empty, contains spaces or cannot be printed.

    It may be somebody else's, and control characters could change what a terminal shows.
    """
    return value if value.isprintable() and value and " " not in value else repr(value)
