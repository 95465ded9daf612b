"""``python [-u -O -X … -W … -m …]``: the interpreter, its options, and whether it is ours."""

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

# python --help of 3.11 to 3.14
INTERPRETER = Table(
    "python",
    valued=frozenset({"-X", "-W", "--check-hash-based-pycs"}),
    switches=named("-b -B -d -E -h -i -I -O -P -q -R -s -S -u -v -V -x --help --version"),
    ends=frozenset({"-m", "-c"}),
)
NAME = re.compile(r"(python|pypy)(\d+(\.\d+)*t?)?(\.exe)?")
KEPT = named("-b -B -d -O -q -R -s -u -v")
# These would keep a rig from importing autotune, or from hearing what its environment says
CLOSED = {"-E": "the variables PYTHON...", "-I": "the variables PYTHON...", "-S": "site-packages"}
ASK = (
    "import sys, importlib.util as u; print(sys.prefix, '%d.%d' % sys.version_info[:2], "
    "u.find_spec('autotune') is not None, sep='\\n')"
)
ASK_S = 10.0  # on a busy machine; most answer within a tenth of a second
DISTRIBUTION = "autotune-torch"


def is_python(word: str) -> bool:
    """Tell whether a word names an interpreter."""
    return NAME.fullmatch(Path(word).name) is not None


def take_python(
    words: tuple[str, ...], known: Known, shell: Shell
) -> tuple[tuple[str, ...], Known]:
    """Read an interpreter with its options.

    Raises:
        UsageError: for an interpreter of another environment, and for a program without a file.
    """
    check_environment(words, known, shell)
    return take_options(words[1:], known, shell)


def take_options(
    words: tuple[str, ...], known: Known, shell: Shell
) -> tuple[tuple[str, ...], Known]:
    """Read the options of an interpreter; ``-m MODULE`` stays at the front of the rest."""
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
        elif name == "-W":
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
        known = known.with_note("python -i is left out: nobody types in a trial.")
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
                f"python {name} keeps {CLOSED[name]} from the interpreter, by which autotune "
                "reaches it. Leave it out."
            )
        del value
    if (not taken.rest and not taken.last("-m")) or taken.rest[:1] == ("-",):
        raise UsageError(
            "The line ends before it names a program. A search starts it many times, so it cannot "
            "come from standard input: autotune search -- python train.py"
        )


def check_environment(words: tuple[str, ...], known: Known, shell: Shell) -> None:
    """Refuse an interpreter of another environment.

    Raises:
        UsageError: with what to install where, and the line to type; or that it does not answer.
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
            f"'{word}' is {found}, and it did not answer within {ASK_S:g} s, so that nobody knows "
            f"whether it has autotune. See whether '{shlex.quote(found)} -V' answers, or name the "
            f"interpreter that runs autotune:\n"
            f"{known.to_type((), (shell.python, *words[1:]), shell)}"
        ) from error
    own = (str(Path(shell.prefix).resolve()), "{}.{}".format(*sys.version_info))
    if (prefix, version) == own:
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
    """Tell by its place alone whether an interpreter is that of our own environment."""
    is_there = Path(python).parent.resolve() == shell.bin_dir.resolve()
    return is_there and Path(python).resolve() == Path(shell.python).resolve()


def _asked(python: str) -> tuple[str, str, bool]:
    """Ask an interpreter for its prefix and version, and whether it has autotune.

    Raises:
        TimeoutExpired: when it does not answer.
    """
    try:
        answer = subprocess.run(
            [python, "-c", ASK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_S,
            check=True,
            cwd="/",
        )
        prefix, version, has_autotune = answer.stdout.splitlines()[-3:]
    except (OSError, subprocess.CalledProcessError, ValueError):
        return "", "", False
    return str(Path(prefix).resolve()), version, has_autotune == "True"
