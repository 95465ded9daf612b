"""Read ``A=1 B=2 LINE`` and ``env A=1 LINE``: environment variables that a command line sets."""

from __future__ import annotations

import re
import shlex

from autotune.errors import UsageError
from autotune.program.line.base import Known, Shell

ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def is_assignment(word: str) -> bool:
    """Return whether a word has the form ``NAME=value``."""
    return ASSIGNMENT.match(word) is not None


def take_assignments(
    words: tuple[str, ...], known: Known, shell: Shell
) -> tuple[tuple[str, ...], Known]:
    """Read leading ``NAME=value`` words, as a shell does."""
    del shell
    place = next((n for n, word in enumerate(words) if not is_assignment(word)), len(words))
    pairs = (word.partition("=") for word in words[:place])
    return words[place:], known.with_env({name: value for name, _, value in pairs})


def take_env(words: tuple[str, ...], known: Known, shell: Shell) -> tuple[tuple[str, ...], Known]:
    """Read ``env NAME=value …``.

    Raises:
        UsageError: ``env`` has options. They change the environment as a whole, so ``env`` has to
            start autotune; the message names that line.
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
    """Return the line with autotune inserted after the options and variables of ``env``."""
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
