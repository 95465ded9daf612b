"""What the readers of a command line share: where it was typed, and what was read so far."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

MAIN = os.path.join("autotune", "__main__.py")  # noqa: PTH118 - the end of a path
PYTHON = re.compile(r"(python|pypy)(\d+(\.\d+)*t?)?(\.exe)?")
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


@dataclass(frozen=True)
class Shell:
    """Where a command line was typed.

    It is an argument of every reader, so that tests can pass another directory, environment or
    interpreter.

    Attributes:
        prefix: The root of its environment, whose ``bin`` folder holds the interpreter.
        command: What was typed before the line, such as ``autotune search --budget 90s``. Messages
            repeat it in the line to type.
    """

    cwd: Path
    variables: Mapping[str, str]
    python: str = sys.executable
    prefix: str = sys.prefix
    command: str = "autotune search"

    @classmethod
    def here(cls, words: Sequence[str] = (), cwd: Path | None = None) -> Shell:
        """Return the shell from which this process was started."""
        shell = cls((cwd or Path.cwd()).resolve(), dict(os.environ))
        before = sys.argv[1 : len(sys.argv) - len(words)]
        # When search(command=...) is called from Python, sys.argv belongs to another program.
        is_command = Path(sys.argv[0]).stem == "autotune" or sys.argv[0].endswith(MAIN)
        if not (is_command and words and before and sys.argv[-len(words) :] == list(words)):
            return shell
        before = before[:-1] if before[-1] == "--" else before
        return replace(shell, command=shlex.join(["autotune", *before]))

    @property
    def bin_dir(self) -> Path:
        """The folder with the commands of autotune's own environment."""
        return Path(self.prefix) / "bin"

    def which(self, word: str, known: Known) -> str | None:
        """Return the file that a shell would start for a word, or None if there is none."""
        if "/" in word:  # shells do not look up such a word on PATH
            path = self.cwd / word
            return str(path) if path.is_file() else None
        return shutil.which(word, path=known.variable("PATH", self))


@dataclass(frozen=True)
class Known:
    """What has been read of a command line so far.

    Attributes:
        is_safe_path: Whether ``python -P`` keeps the script's folder off the import path.
        is_python: Whether an interpreter was read, so that a script or ``-m MODULE`` must follow.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    ranks: int | None = None
    python_options: tuple[str, ...] = ()
    warning_filters: tuple[str, ...] = ()
    is_safe_path: bool = False
    is_python: bool = False
    notes: tuple[str, ...] = ()

    def with_env(self, variables: Mapping[str, str]) -> Known:
        """Return a copy that sets further variables."""
        return replace(self, env={**self.env, **variables})

    def variable(self, name: str, shell: Shell) -> str | None:
        """Return a variable as the program will see it, or None if it is unset."""
        return self.env.get(name, shell.variables.get(name))

    def to_type(self, before: Sequence[str], after: Sequence[str], shell: Shell) -> str:
        """Return the line to type instead: *before*, then autotune's own command, then *after*."""
        variables = "".join(f"{name}={shlex.quote(value)} " for name, value in self.env.items())
        outer = f"{shlex.join(before)} " if before else ""
        return f"  {variables}{outer}{shell.command} -- {shlex.join(after)}"


Rest = tuple[tuple[str, ...], Known]
# A reader gets the words that are left, beginning with its own name (such as "torchrun"), and
# returns the words after those that it understood, together with what it learned from them.
Reader = Callable[[tuple[str, ...], Known, Shell], Rest]


def is_python(word: str) -> bool:
    """Return whether a word names a Python interpreter, such as ``python3.12``."""
    return PYTHON.fullmatch(Path(word).name) is not None


def is_assignment(word: str) -> bool:
    """Return whether a word has the form ``NAME=value``."""
    return ASSIGNMENT.match(word) is not None
