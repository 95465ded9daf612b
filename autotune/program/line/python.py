"""Read ``python [-u -O -X … -W … -m …]``, and check that the interpreter is autotune's own.

Trials run under the interpreter that runs autotune. If the line names an interpreter of another
environment, its packages would differ, so the line is refused with a remedy.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autotune.errors import UsageError
from autotune.program.line.base import Known, Rest, Shell
from autotune.program.line.elsewhere import INSTALL
from autotune.program.short_process import answer_of

KEPT = frozenset("bBdOqRsuv")  # letters of options that go to the interpreter of every trial
VALUED = frozenset("XWm")
READ = KEPT | VALUED | {"i", "P"}
CLOSED = "it keeps what autotune needs in a trial from the interpreter"
REFUSED = {
    "c": "it names no file, and a search starts its program often. Save the code as a file and "
    "name that: autotune search train.py",
    "E": f"{CLOSED}: the variables PYTHON.... Leave it out.",
    "I": f"{CLOSED}: the variables PYTHON.... Leave it out.",
    "S": f"{CLOSED}: site-packages. Leave it out.",
}
# What -X takes that neither runs code nor names a file (docs.python.org, "Command line")
PLAIN_X = {
    *("cpu_count", "dev", "faulthandler", "frozen_modules", "gil", "importtime", "perf", "utf8"),
    *("int_max_str_digits", "no_debug_ranges", "perf_jit", "showrefcount", "tracemalloc"),
    *("context_aware_warnings", "thread_inherit_context", "warn_default_encoding"),
}
ASK_S = 10.0  # for a busy machine; most interpreters answer within a tenth of a second


def take_python(words: tuple[str, ...], known: Known, shell: Shell) -> Rest:
    """Read an interpreter with its options.

    Raises:
        UsageError: The interpreter belongs to another environment, or no program file follows.
    """
    check_environment(words, known, shell)
    return take_options(words[1:], known, shell)


def take_options(words: tuple[str, ...], known: Known, shell: Shell) -> Rest:
    """Read the options of an interpreter; ``-m MODULE`` stays at the front of the remaining words.

    Raises:
        UsageError: An option cannot be used in a trial, such as ``-c`` or ``-I``, or no program
            follows.
    """
    del shell
    found, rest = _options(words)
    options, filters = list(known.python_options), list(known.warning_filters)
    for letter, value in found:
        if letter in KEPT:
            options.append(f"-{letter}")
        elif letter == "X":
            options += ["-X", value]
        elif letter == "W":  # kept apart: see Program.warning_filters
            filters.append(value)
        elif letter == "m":
            rest = ("-m", value, *rest)
    if not rest or rest[0] == "-":
        raise UsageError(
            "The line ends before it names a program. A search starts it many times, so it cannot "
            "come from standard input: autotune search -- python train.py"
        )
    letters = {letter for letter, _ in found}
    told = ("python -i is left out: a trial is not interactive.",) if "i" in letters else ()
    known = replace(
        known,
        python_options=tuple(options),
        warning_filters=tuple(filters),
        is_safe_path=known.is_safe_path or "P" in letters,
        is_python=True,
        notes=(*known.notes, *told),
    )
    return rest, known


def more_than_plain(options: Sequence[str]) -> str:
    """Return the first of an interpreter's options that says what runs, not only how; else empty.

    A search does not take ``-c`` from its line, but a record of a search could hold it.
    """
    words = iter(options)
    for word in words:
        named = next(words, "") if word == "-X" else ""
        is_letter = len(word) == 2 and word[0] == "-" and word[1] in KEPT
        if not is_letter and named.partition("=")[0] not in PLAIN_X:
            return f"{word} {named}".rstrip()
    return ""


def _options(words: tuple[str, ...]) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """Return the options at the front by letter and value, and the other words.

    ``-uW error`` is -u and then -W; ``-m`` ends the options.
    """
    found: list[tuple[str, str]] = []
    rest = [*words]
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            raise UsageError(
                f"{word} stands before the program. Options of autotune come right after its "
                "command, and those of the program after the program."
            )
        letters = word[1:]
        while letters:
            letter, letters, value = letters[0], letters[1:], ""
            if letter not in READ:
                why = REFUSED.get(letter, "autotune starts no python with it. Leave it out.")
                raise UsageError(f"python {word}: {why}")
            if letter in VALUED:
                if not letters and not rest:
                    raise UsageError(f"python -{letter} needs a value.")
                value, letters = letters or rest.pop(0), ""
            found.append((letter, value))
        if found[-1][0] == "m":
            break
    return found, tuple(rest)


def check_environment(words: tuple[str, ...], known: Known, shell: Shell) -> None:
    """Raise an error if an interpreter belongs to another environment than autotune's.

    Raises:
        UsageError: There is no such interpreter, or its environment differs. The message says what
            to install where and which line to type.
    """
    found = shell.which(words[0], known)
    if found is None:
        raise UsageError(
            f"There is no interpreter '{words[0]}'. autotune runs under {shell.python}:\n"
            f"{known.to_type((), (shell.python, *words[1:]), shell)}"
        )
    if is_ours(found, shell) or _prefix_of(found) == Path(shell.prefix).resolve():
        return
    theirs = replace(shell, command=f"{shlex.quote(found)} -m {shell.command}")
    raise UsageError(
        f"'{words[0]}' is {found}, and autotune runs in another environment: {shell.prefix}. If "
        f"autotune is not there yet, in a clone of it:\n  {shlex.quote(found)} {INSTALL}\n"
        f"Start the autotune of the program's own environment:\n{known.to_type((), words, theirs)}"
    )


def is_ours(python: str, shell: Shell) -> bool:
    """Return whether an interpreter is that of autotune's environment, by its path alone."""
    is_there = Path(python).parent.resolve() == shell.bin_dir.resolve()
    return is_there and Path(python).resolve() == Path(shell.python).resolve()


def _prefix_of(python: str) -> Path | None:
    """Ask an interpreter for the root of its environment; None if it does not answer."""
    try:
        done = answer_of([python, "-I", "-c", "import sys; print(sys.prefix)"], ASK_S)
    except (OSError, subprocess.SubprocessError):
        return None
    return None if done.returncode else Path(done.stdout.strip()).resolve()
