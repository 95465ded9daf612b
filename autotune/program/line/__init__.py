"""Read the command line that starts a training and find the program, its ranks and variables.

``autotune search -- LINE`` trains what LINE would train, but it does not run LINE: a launcher in
between would hide the program from the rigs. Instead, the line is read from its front. Each known
word (``env``, ``torchrun``, ``python`` …) has a reader that takes it and its options off the line.
The remaining words name the program. The shortest line is ``autotune search train.py``.

Covered: interpreters, variables, torchrun, accelerate, srun, and harmless commands before them. For
a line that autotune cannot start, the error names the line to type instead.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.errors import UsageError
from autotune.program.line import elsewhere, shell_script, torchrun
from autotune.program.line.accelerate import MODULES as ACCELERATE_MODULES
from autotune.program.line.accelerate import take_accelerate, take_accelerate_launch
from autotune.program.line.base import Known, Reader, Shell
from autotune.program.line.prefixes import HARMLESS, take_harmless
from autotune.program.line.python import is_python, take_options, take_python
from autotune.program.line.slurm import take_srun
from autotune.program.line.target import program_at
from autotune.program.line.torchrun import take_torchrun
from autotune.program.line.variables import is_assignment, take_assignments, take_env
from autotune.program.program import Program

__all__ = ["Line", "Shell", "read", "words_of"]

# Interpreters are not in this table: they are recognised by a pattern (python3.12, pypy …).
READERS: Mapping[str, Reader] = {
    "env": take_env,
    "torchrun": take_torchrun,
    "accelerate": take_accelerate,
    "accelerate-launch": take_accelerate_launch,
    "srun": take_srun,
    **dict.fromkeys(HARMLESS, take_harmless),
}
Refusal = Callable[[tuple[str, ...], Known, Shell], UsageError]
REFUSALS: Mapping[str, Refusal] = {
    **dict.fromkeys(elsewhere.MANAGERS, elsewhere.refuse_manager),
    **dict.fromkeys(elsewhere.OUTER, elsewhere.refuse_outer),
    **dict.fromkeys(elsewhere.PROFILERS, elsewhere.refuse_profiler),
    **dict.fromkeys(elsewhere.LAUNCHERS, elsewhere.refuse_launcher),
    **dict.fromkeys(shell_script.SHELLS, shell_script.refuse_script),
}
SCRIPT_ENDS = (".sh", ".bash", ".slurm", ".sbatch")
# No shell reads the text of search(command=...), so these would reach the program as arguments.
OPERATORS = frozenset({"|", "||", "&&", ";", "&", ">", ">>", "<", "2>&1", "2>", "&>"})


@dataclass(frozen=True)
class Line:
    """The result of reading a command line.

    Attributes:
        program: The program that the line starts.
        notes: What the user should know about how the line was read, one sentence each.
    """

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
        words: The line, split as a shell splits it. A leading ``--`` is dropped.
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
    program = _with_ranks(program, ranks)
    if rest != whole or not _is_short(program, rest):
        place = len(whole) - len(program.args)  # the program's arguments end the line
        program = replace(program, command=whole[:place])
    return Line(program, known.notes)


def _reader_of(words: tuple[str, ...], known: Known, shell: Shell) -> Reader | None:
    """Return the reader for the first word, or None if that word is the program.

    Raises:
        UsageError: The word is a command that autotune cannot start.
    """
    word, name = words[0], Path(words[0]).name
    # After an interpreter, only a script or -m MODULE can follow, whatever the word looks like.
    if known.is_python:
        return _reader_of_module(words, known, shell) if word == "-m" else None
    if word.startswith("-"):  # interpreter options without "python", as in -u train.py
        return take_options
    if _is_users_file(word, shell):
        return None
    if is_assignment(word):
        return take_assignments
    if refuse := _refusal_of(name):
        raise refuse(words, known, shell)
    return take_python if is_python(word) else READERS.get(name)


def _is_users_file(word: str, shell: Shell) -> bool:
    """Return whether a word that looks like a command or like ``A=1`` is a script of the user's.

    A file called ``time`` in the current directory is such a script. A path to an executable file
    is not: typed in a shell, it would be run as a command.
    """
    path = shell.cwd / word
    if word.endswith(SCRIPT_ENDS) or not path.is_file():
        return False
    return "/" not in word or is_assignment(word) or not os.access(path, os.X_OK)


def _refusal_of(name: str) -> Refusal | None:
    """Return the function that refuses a command which autotune cannot start; None for others."""
    return shell_script.refuse_script if name.endswith(SCRIPT_ENDS) else REFUSALS.get(name)


def _reader_of_module(words: tuple[str, ...], known: Known, shell: Shell) -> Reader | None:
    """Return the reader for ``-m MODULE``, or None if the module is the program."""
    module = words[1] if len(words) > 1 else ""
    if module in elsewhere.PROFILER_MODULES:
        raise elsewhere.refuse_profiler(("python", *words), known, shell)
    if module in torchrun.MODULES:
        return _as("torchrun", take_torchrun)
    if module == torchrun.OLD_MODULE:
        return _as("torchrun", torchrun.take_old_launcher)
    if module in ACCELERATE_MODULES:
        is_launch = module == "accelerate.commands.launch"
        return _as("accelerate", take_accelerate, *(["launch"] if is_launch else []))
    return None


def _as(name: str, reader: Reader, *more: str) -> Reader:
    """Return a reader that reads ``-m MODULE …`` as if it were the command *name*.

    The launcher starts new interpreters for its ranks. The options of the interpreter that ran the
    launcher do not apply to those, so they are dropped.
    """

    def take(words: tuple[str, ...], known: Known, shell: Shell) -> tuple[tuple[str, ...], Known]:
        return reader((name, *more, *words[2:]), known.without_python(), shell)

    return take


def _is_short(program: Program, words: tuple[str, ...]) -> bool:
    """Return whether ``str(program)`` already equals the line, so that it need not be stored."""
    return words[0] != "-m" and str(program) == shlex.join(words)


def _with_ranks(program: Program, ranks: int | None) -> Program:
    if ranks is None:
        return program
    if program.ranks is not None and program.ranks != ranks:
        raise UsageError(
            f"--nproc-per-node {ranks} was given, but the line starts {program.ranks} ranks. "
            "Say it once."
        )
    return replace(program, ranks=ranks)
