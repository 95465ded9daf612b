"""Read the command line that starts a training and find the program, its ranks and variables.

``autotune search -- LINE`` trains what LINE would train, but it does not run LINE: a launcher in
between would hide the program from the rigs. Instead, the line is read from its front. Each known
word (``env``, ``torchrun``, ``python`` …) has a reader that takes it and its options off the line.
The remaining words name the program. The shortest line is ``autotune search train.py``.

Covered: interpreters, variables, torchrun and accelerate. For any other line, the error names the
line to type instead.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.errors import UsageError
from autotune.program.line import elsewhere, launchers
from autotune.program.line.base import Known, Reader, Shell, is_assignment, is_python
from autotune.program.line.elsewhere import take_assignments, take_env
from autotune.program.line.launchers import take_launcher, take_launcher_module
from autotune.program.line.python import take_options, take_python
from autotune.program.line.target import program_at
from autotune.program.program import Program

__all__ = ["Line", "Shell", "read", "words_of"]

# Interpreters are not in this table: they are recognised by a pattern (python3.12, pypy …).
READERS: Mapping[str, Reader] = {
    "env": take_env,
    **dict.fromkeys(("torchrun", "accelerate", "accelerate-launch"), take_launcher),
}
# No shell reads the text of search(command=...), so these would reach the program as arguments.
OPERATORS = frozenset({"|", "||", "&&", ";", "&", ">", ">>", "<", "2>&1", "2>", "&>"})


@dataclass(frozen=True)
class Line:
    """The result of reading a command line."""

    program: Program
    notes: tuple[str, ...] = ()


def words_of(command: str | Sequence[str]) -> tuple[str, ...]:
    """Return a command as a tuple of words; text is split as a shell would, without expansion.

    Raises:
        UsageError: The text has an open quote, or uses pipes, redirections or other operators that
            only a shell can perform.
    """
    if not isinstance(command, str):
        return tuple(map(str, command))
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(f"command={command!r} has an open quote.") from error
    if found := sorted(OPERATORS & set(words)):
        raise UsageError(
            f"command={command!r} needs a shell for {' '.join(found)}. Give the one program that "
            "trains, without pipes and redirections."
        )
    return words


def read(words: Sequence[str], shell: Shell | None = None, ranks: int | None = None) -> Line:
    """Return the program that a command line starts.

    Args:
        shell: Where the line was typed; by default the directory and environment of this process.
        ranks: Number of ranks from autotune's ``--nproc-per-node``; None leaves it to the line.

    Raises:
        UsageError: autotune cannot start this line. The message says what to type instead.
    """
    whole = tuple(words)[1:] if tuple(words[:1]) == ("--",) else tuple(words)
    shell = shell or Shell.here(whole)
    rest, known = whole, Known()
    # Each reader removes at least its own word, so the loop ends: at the program, or at nothing.
    while rest and (reader := _reader_of(rest, known, shell)):
        rest, known = reader(rest, known, shell)
    if not rest:
        raise UsageError(
            f"'{shlex.join(whole)}' names no program to train. Type: {shell.command} train.py"
        )
    program = program_at(rest, known, shell)
    if ranks is not None:
        if program.ranks not in {None, ranks}:
            raise UsageError(
                f"--nproc-per-node {ranks} was given, but the line starts {program.ranks} ranks. "
                "Say it once."
            )
        program = replace(program, ranks=ranks)
    # Stored only where the program's own text differs from what was typed
    if rest != whole or rest[0] == "-m" or str(program) != shlex.join(rest):
        place = len(whole) - len(program.args)  # the program's arguments end the line
        program = replace(program, command=whole[:place])
    return Line(program, known.notes)


def _reader_of(words: tuple[str, ...], known: Known, shell: Shell) -> Reader | None:
    """Return the reader for the first word, or None if that word is the program."""
    word = words[0]
    # After an interpreter, only a script or -m MODULE can follow, whatever the word looks like.
    if known.is_python:
        module = words[1] if word == "-m" and len(words) > 1 else ""
        if module in elsewhere.PROFILERS:
            raise elsewhere.profiler(words, known, shell)
        if module == launchers.FORMER_TORCHRUN:
            raise launchers.refuse_former(words, known, shell)
        return take_launcher_module if module in launchers.MODULES else None
    if word.startswith("-"):  # interpreter options without "python", as in -u train.py
        return take_options
    # A file called ``time`` in the current directory is a script of the user's. A path to an
    # executable file is not: typed in a shell, it would be run as a command.
    path = shell.cwd / word
    is_script = "/" not in word or is_assignment(word) or not os.access(path, os.X_OK)
    if is_script and path.is_file() and not word.endswith(elsewhere.SCRIPT_ENDS):
        return None
    if is_assignment(word):
        return take_assignments
    if error := elsewhere.refusal(words, known, shell):
        raise error
    return take_python if is_python(word) else READERS.get(Path(word).name)
