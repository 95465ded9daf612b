"""``A=1 B=2 LINE`` and ``env A=1 LINE``: variables that a line sets."""

from __future__ import annotations

import re
import shlex

from autotune.errors import UsageError
from autotune.program.line.base import Known, Shell

ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def is_assignment(word: str) -> bool:
    """Tell whether a word is ``NAME=value``."""
    return ASSIGNMENT.match(word) is not None


def take_assignments(
    words: tuple[str, ...], known: Known, shell: Shell
) -> tuple[tuple[str, ...], Known]:
    """Read ``NAME=value`` words, as shells do at the front of a line."""
    del shell
    place = next((n for n, word in enumerate(words) if not is_assignment(word)), len(words))
    pairs = (word.partition("=") for word in words[:place])
    return words[place:], known.with_env({name: value for name, _, value in pairs})


def take_env(words: tuple[str, ...], known: Known, shell: Shell) -> tuple[tuple[str, ...], Known]:
    """Read ``env NAME=value``.

    Raises:
        UsageError: for options of env; what they do cannot be added to our own environment.
    """
    rest = words[1:]
    if rest and rest[0] == "--":
        rest = rest[1:]
    if rest and rest[0].startswith("-"):
        raise UsageError(
            f"env {rest[0]} acts on all that it starts. Let it start autotune:\n"
            f"  {_with_autotune(words, known, shell)}"
        )
    return take_assignments(rest, known, shell)


def _with_autotune(words: tuple[str, ...], known: Known, shell: Shell) -> str:
    """Put autotune behind the options and the variables of env."""
    place, takes_value = 1, {"-u", "--unset", "-C", "--chdir", "-S", "--split-string"}
    while place < len(words):
        word = words[place]
        if word in takes_value:
            place += 1
        elif not (word.startswith("-") or is_assignment(word)):
            break
        place += 1
    before, after = words[:place], words[place:]
    return f"{known.prefix(before)}{shell.command} -- {shlex.join(after)}"
