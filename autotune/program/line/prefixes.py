"""What stands before a program: variables, ``env``, and commands that start it."""

from __future__ import annotations

from pathlib import Path

from autotune.errors import UsageError
from autotune.program.line.base import Known, Rest, Shell, is_assignment, is_python

# Words that begin a program when they follow another command, besides interpreters and scripts
STARTERS = frozenset({"env", "torchrun", "accelerate", "accelerate-launch", "srun", "bash", "sh"})
# Options whose value could be taken for a program, such as a conda environment called "env"
WITH_NAMES = frozenset(
    {"-n", "--name", "-p", "--prefix", "--cwd", "--with", "--python", "-e", "--env", "--env-file"}
)


def split(
    words: tuple[str, ...], shell: Shell, start: int = 1
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split a line into the outer command with its options, and the program that it starts.

    Only the outer command knows which of its options take a value. So the first word that looks
    like a program is searched for, else the first one that is not an option.
    """
    places = [n for n in range(start, len(words)) if words[n - 1] not in WITH_NAMES]
    found = next((n for n in places if can_start(words[n], shell)), None)
    if found is None:
        found = next((n for n in places if not words[n].startswith("-")), len(words))
    if found > start and words[found - 1] in {"-m", "--module"}:
        found -= 1
    while found > start and is_assignment(words[found - 1]):  # A=1 belongs to the program
        found -= 1
    before = words[:found]
    # The line to type has autotune's own "--" behind it
    return (before[:-1] if before[-1:] == ("--",) else before), words[found:]


def can_start(word: str, shell: Shell) -> bool:
    """Return whether a word looks like the beginning of a program."""
    is_command = Path(word).name in STARTERS or is_python(word)
    is_script = word.endswith((".py", ".sh")) or ".py:" in word
    return is_command or is_script or (shell.bin_dir / word).is_file()


def take_assignments(words: tuple[str, ...], known: Known, shell: Shell) -> Rest:
    """Read leading ``NAME=value`` words, as a shell does."""
    del shell
    place = next((n for n, word in enumerate(words) if not is_assignment(word)), len(words))
    pairs = (word.partition("=") for word in words[:place])
    return words[place:], known.with_env({name: value for name, _, value in pairs})


def take_env(words: tuple[str, ...], known: Known, shell: Shell) -> Rest:
    """Read ``env NAME=value …``.

    Raises:
        UsageError: ``env`` has options. They change the environment as a whole, so ``env`` has to
            start autotune; the message names that line.
    """
    rest = words[2:] if words[1:2] == ("--",) else words[1:]
    if rest and rest[0].startswith("-"):
        before, after = split(words, shell)
        raise UsageError(
            f"env {rest[0]} acts on all that it starts. Let it start autotune:\n"
            f"{known.to_type(before, after, shell)}"
        )
    return take_assignments(rest, known, shell)
