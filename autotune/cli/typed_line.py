"""The program at the end of a command line: read it, and warn about what was not taken as typed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from autotune.cli.messages import Messages

HELP = ("-h", "--help")  # which a program's own parser has without a word in its text

if TYPE_CHECKING:
    from autotune.program.program import Program


def program_typed(
    context: typer.Context,
    messages: Messages,
    program: str,
    args: Sequence[str] | None,
    *,
    is_module: bool = False,
    ranks: int | None = None,
) -> Program:
    """Return the program that a command line starts, and warn about what was not taken as typed.

    Raises:
        UsageError: The line starts no program of Python, or autotune cannot tune this environment's
            torch.
    """
    from autotune.program import line
    from autotune.program.environment import require_torch

    require_torch()
    words = (*(("-m",) if is_module else ()), program, *(args or ()))
    found = line.read(words, ranks=ranks)
    for note in (*found.notes, *_strayed(context.command, found.program, words)):
        messages.warn(note)
    return found.program


def _knows(text: str, name: str) -> bool:
    """Return whether a program's text has an option: a long name in it, or a short one quoted."""
    if name.startswith("--"):
        return name.lstrip("-").replace("-", "_") in text
    return f'"{name}"' in text or f"'{name}'" in text


def _strayed(command: Any, program: Program, words: Sequence[str]) -> Iterator[str]:
    """Yield a warning if options of autotune stand after the program, with the line to type.

    They go to the program, and are only warned about if its file does not contain their names.
    """
    names = [arg.partition("=")[0] for arg in program.args if arg.startswith("-")]
    # A program that knows an option of the same name contains it, with dashes or as an identifier.
    text = Path(program.source).read_text(encoding="utf-8", errors="replace")
    unknown = [name for name in names if not _knows(text, name)]
    takes_value = {
        name: not getattr(parameter, "is_flag", False)
        for parameter in command.params
        for name in parameter.opts
        if name.startswith("-") and name not in HELP
    }
    if strayed := [n for n in unknown if n in takes_value]:
        ours, theirs = list[str](), list(program.args)
        before = words[: len(words) - len(theirs)]
        for name in strayed:
            place = next(n for n, arg in enumerate(theirs) if arg.partition("=")[0] == name)
            end = place + 1 + (takes_value[name] and "=" not in theirs[place])
            ours += theirs[place:end] + ["VALUE"] * (end > len(theirs))
            del theirs[place:end]
        ours += [] if before[0].endswith(".py") else ["--"]
        yield (
            f"{' '.join(strayed)} stands after the program, so the program gets it. If it is meant "
            "for autotune, press Ctrl-C and type: "
            f"autotune {command.name} {shlex.join([*ours, *before, *theirs])}"
        )
