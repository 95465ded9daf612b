"""What the readers of a line share: where it is typed, and what was read of it so far."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

MAIN = os.path.join("autotune", "__main__.py")  # noqa: PTH118 - the end of a path


@dataclass(frozen=True)
class Shell:
    """Where a line is typed.

    Attributes:
        cwd: The working directory, absolute.
        variables: The environment.
        python: The interpreter that runs autotune.
        prefix: Its environment: the folder whose ``bin`` holds it.
        command: What was typed before the line, such as ``autotune search --budget 90s``.
    """

    cwd: Path
    variables: Mapping[str, str]
    python: str = sys.executable
    prefix: str = sys.prefix
    command: str = "autotune search"

    @classmethod
    def here(cls, words: Sequence[str] = (), cwd: Path | None = None) -> Shell:
        """Return the shell that this process was started from.

        Args:
            words: The line; what stands before it on our own command line is the command.
            cwd: The working directory; by default this process's.
        """
        shell = cls((cwd or Path.cwd()).resolve(), dict(os.environ))
        before = sys.argv[1 : len(sys.argv) - len(words)]
        is_command = Path(sys.argv[0]).stem == "autotune" or sys.argv[0].endswith(MAIN)
        if not (is_command and words and before and sys.argv[-len(words) :] == list(words)):
            return shell
        before = before[:-1] if before[-1] == "--" else before
        return replace(shell, command=shlex.join(["autotune", *before]))

    @property
    def trains(self) -> bool:
        """The program trains for good, as ``autotune run`` has it: not in trials."""
        return shlex.split(self.command)[1:2] == ["run"]

    @property
    def bin_dir(self) -> Path:
        """The folder of our own environment's commands."""
        return Path(self.prefix) / "bin"

    def which(self, word: str, known: Known) -> str | None:
        """Return the file that a shell would start for a word, None where there is none."""
        if "/" in word:
            path = self.cwd / word
            return str(path) if path.is_file() else None
        return shutil.which(word, path=known.variable("PATH", self))


@dataclass(frozen=True)
class Known:
    """What was read of a line so far.

    Attributes:
        env: Variables that it sets.
        ranks: How many ranks it starts, None where it starts one process.
        python_options: Options of the interpreter.
        warning_filters: Values of ``python -W``.
        is_safe_path: ``python -P``: the script's folder is not on the import path.
        is_python: The interpreter was named: what follows is a script or ``-m MODULE``.
        notes: What the user should know of how it was read, one sentence each.
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

    def without_python(self) -> Known:
        """Return a copy for what another interpreter runs."""
        return replace(
            self, python_options=(), warning_filters=(), is_safe_path=False, is_python=False
        )

    def with_note(self, sentence: str) -> Known:
        """Return a copy with one more sentence for the user."""
        return replace(self, notes=(*self.notes, sentence))

    def variable(self, name: str, shell: Shell) -> str | None:
        """Return a variable as the program will see it."""
        return self.env.get(name, shell.variables.get(name))

    def to_type(self, before: Sequence[str], after: Sequence[str], shell: Shell) -> str:
        """Return the line to type instead: *before*, then autotune, then *after*."""
        return f"  {self.prefix(before)}{shell.command} -- {shlex.join(after)}"

    def prefix(self, before: Sequence[str]) -> str:
        """Return what comes before autotune in a line to type."""
        variables = [f"{name}={shlex.quote(value)} " for name, value in self.env.items()]
        return "".join(variables) + (f"{shlex.join(before)} " if before else "")


# Takes the words that it knows off the front of a line; the first of them is its own name.
Reader = Callable[[tuple[str, ...], Known, Shell], tuple[tuple[str, ...], Known]]
