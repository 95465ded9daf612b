"""Read ``python [-u -O -X … -W … -m …]``, and check that the interpreter is autotune's own.

Trials run under the interpreter that runs autotune. If the line names an interpreter of another
environment, its packages would differ, so the line is refused with a remedy.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from autotune.errors import UsageError
from autotune.program.line.base import Known, Shell
from autotune.program.line.table import Table, Taken, named

# Source: python --help of versions 3.11 to 3.14
INTERPRETER = Table(
    "python",
    valued=frozenset({"-X", "-W", "--check-hash-based-pycs"}),
    switches=named("-b -B -d -E -h -i -I -O -P -q -R -s -S -u -v -V -x --help --version"),
    ends=frozenset({"-m", "-c"}),
)
NAME = re.compile(r"(python|pypy)(\d+(\.\d+)*t?)?(\.exe)?")
KEPT = named("-b -B -d -O -q -R -s -u -v")  # passed on to the interpreter of every trial
# With these a rig could not import autotune, or would ignore the environment variables that
# configure it
CLOSED = {"-E": "the variables PYTHON...", "-I": "the variables PYTHON...", "-S": "site-packages"}
ASK = (
    "import sys, importlib.util as u; print(sys.prefix, '%d.%d' % sys.version_info[:2], "
    "u.find_spec('autotune') is not None, sep='\\n')"
)
ASK_S = 10.0  # for a busy machine; most interpreters answer within a tenth of a second
DISTRIBUTION = "autotune-torch"


def is_python(word: str) -> bool:
    """Return whether a word names a Python interpreter, such as ``python3.12``."""
    return NAME.fullmatch(Path(word).name) is not None


def take_python(
    words: tuple[str, ...], known: Known, shell: Shell
) -> tuple[tuple[str, ...], Known]:
    """Read an interpreter with its options.

    Raises:
        UsageError: The interpreter belongs to another environment, or no program file follows.
    """
    check_environment(words, known, shell)
    return take_options(words[1:], known, shell)


def take_options(
    words: tuple[str, ...], known: Known, shell: Shell
) -> tuple[tuple[str, ...], Known]:
    """Read the options of an interpreter; ``-m MODULE`` stays at the front of the remaining words.

    Raises:
        UsageError: An option cannot be used in a trial, such as ``-c`` or ``-I``, or no program
            follows.
    """
    del shell
    taken = INTERPRETER.take(words)
    _check_options(taken)
    options, filters = list(known.python_options), list(known.warning_filters)
    rest, is_safe_path = taken.rest, known.is_safe_path
    for name, value in taken.options:
        if name in KEPT:
            options.append(name)
        elif name == "-X":
            options += [name, value]
        elif name == "-W":  # kept apart: see Program.warning_filters
            filters.append(value)
        elif name == "-P":
            is_safe_path = True
        elif name == "-m":
            rest = ("-m", value, *rest)
    known = replace(
        known,
        python_options=tuple(options),
        warning_filters=tuple(filters),
        is_safe_path=is_safe_path,
        is_python=True,
    )
    if any(name == "-i" for name, _ in taken.options):
        known = known.with_note("python -i is left out: a trial is not interactive.")
    return rest, known


def _check_options(taken: Taken) -> None:
    for name, value in taken.options:
        if name == "-c":
            raise UsageError(
                "python -c names no file, and a search starts its program many times. Save the "
                "code as a file and name that: autotune search train.py"
            )
        if name in {"-h", "--help", "-V", "--version", "-x", "--check-hash-based-pycs"}:
            raise UsageError(f"python {name} trains nothing here. Leave it out.")
        if name in CLOSED:
            raise UsageError(
                f"python {name} keeps {CLOSED[name]} from the interpreter, which autotune needs "
                "in a trial. Leave it out."
            )
        del value
    if (not taken.rest and not taken.last("-m")) or taken.rest[:1] == ("-",):
        raise UsageError(
            "The line ends before it names a program. A search starts it many times, so it cannot "
            "come from standard input: autotune search -- python train.py"
        )


def check_environment(words: tuple[str, ...], known: Known, shell: Shell) -> None:
    """Raise an error if an interpreter belongs to another environment than autotune's.

    Raises:
        UsageError: There is no such interpreter, it does not answer, or its environment or version
            differs. The message says what to install where and which line to type.
    """
    word = words[0]
    found = shell.which(word, known)
    if found is None:
        raise UsageError(
            f"There is no interpreter '{word}'. autotune runs under {shell.python}:\n"
            f"{known.to_type((), (shell.python, *words[1:]), shell)}"
        )
    if is_ours(found, shell):
        return
    try:
        prefix, version, has_autotune = _asked(found)
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            f"'{word}' is {found}, and it did not answer within {ASK_S:g} s, so it is unknown "
            f"whether autotune is installed there. See whether '{shlex.quote(found)} -V' answers, "
            f"or name the interpreter that runs autotune:\n"
            f"{known.to_type((), (shell.python, *words[1:]), shell)}"
        ) from error
    own = (str(Path(shell.prefix).resolve()), "{}.{}".format(*sys.version_info))
    if (prefix, version) == own:  # another path to the same environment, such as a link
        return
    said = f"'{word}' is {found}" + (f" (Python {version})" if version else "")
    install = ""
    if not has_autotune:
        when = "Install autotune there first" if prefix else "If autotune is not installed there"
        install = f"{when}:\n  {shlex.quote(found)} -m pip install {DISTRIBUTION}\n"
    raise UsageError(
        f"{said}, and autotune runs in another environment: {shell.prefix}. {install}"
        "Start the autotune of the program's own environment:\n"
        f"  {known.prefix(())}{shlex.quote(found)} -m {shell.command} -- {shlex.join(words)}"
    )


def is_ours(python: str, shell: Shell) -> bool:
    """Return whether an interpreter is that of autotune's environment, judged by its path only.

    This spares the common case a subprocess.
    """
    is_there = Path(python).parent.resolve() == shell.bin_dir.resolve()
    return is_there and Path(python).resolve() == Path(shell.python).resolve()


def _asked(python: str) -> tuple[str, str, bool]:
    """Ask an interpreter for its prefix, its version, and whether it can import autotune.

    Returns:
        The prefix and version, both empty if it failed, and whether autotune is installed.

    Raises:
        TimeoutExpired: It does not answer within ``ASK_S``.
    """
    try:
        answer = subprocess.run(
            [python, "-c", ASK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_S,
            check=True,
            cwd="/",  # with -c the working directory is on sys.path: it could hold an autotune
        )
        prefix, version, has_autotune = answer.stdout.splitlines()[-3:]
    except (OSError, subprocess.CalledProcessError, ValueError):
        return "", "", False
    return str(Path(prefix).resolve()), version, has_autotune == "True"
