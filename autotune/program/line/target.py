"""Read the end of a command line: a script, ``-m MODULE``, a function or a console script."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from autotune.errors import UsageError, did_you_mean
from autotune.program.line.base import Known, Shell
from autotune.program.line.elsewhere import other
from autotune.program.line.python import check_environment, is_ours
from autotune.program.program import (
    Program,
    ProgramKind,
    find_module,
    fingerprint_of,
    parse_program,
)

# The interpreter of a script, also as pip writes it where the path is long or has spaces
SHEBANG = re.compile(
    rb"#!\s*(?:/usr/bin/env\s+)?(\S*python\S*)|#!/bin/sh\n'''exec' \"?([^\"\s]+python[^\"\s]*)"
)


def program_at(words: tuple[str, ...], known: Known, shell: Shell) -> Program:
    """Return the program that the remaining words name, with what was read before them.

    Raises:
        UsageError: There is no such program, or autotune cannot start it.
    """
    word = words[0]
    is_path = "/" in word or ":" in word or word.endswith(".py") or (shell.cwd / word).is_file()
    is_command = Path(word).parent.resolve() == shell.bin_dir.resolve()
    if word == "-m":
        program = _module(words[1:], known, shell)
    elif known.is_python or (is_path and not is_command):
        program = parse_program(words[0], words[1:], shell.cwd)
    elif script := _command(words[0], known, shell):
        program = _console_script(script, words, known, shell)
    elif error := other(words, known, shell):
        raise error
    else:
        program = parse_program(words[0], words[1:], shell.cwd)
    return replace(
        program,
        ranks=known.ranks,
        env=known.env,
        python_options=known.python_options,
        warning_filters=known.warning_filters,
        import_root="" if known.is_safe_path else program.import_root,
    )


def _module(words: tuple[str, ...], known: Known, shell: Shell) -> Program:
    if not words:
        raise UsageError("-m needs the name of a module: autotune search -m package.module")
    name = words[0]
    added = filter(None, (known.env.get("PYTHONPATH") or "").split(os.pathsep))
    roots = [*(shell.cwd / folder for folder in added), *map(Path, sys.path)]
    # python -P does not import from the current directory
    found = find_module(name, roots if known.is_safe_path else [shell.cwd, *roots])
    if found is None:
        top = name.partition(".")[0]
        near = [p.stem for p in shell.cwd.iterdir() if p.suffix == ".py" or p.is_dir()]
        hint = did_you_mean(top, near) if top not in near else ""
        raise UsageError(
            f"There is no module '{name}' in {shell.cwd} or on the import path.{hint} Start "
            f"autotune where 'python -m {name}' works."
        )
    source = found[1]
    if source.name == "__init__.py":  # python -m PACKAGE runs its __main__.py
        source = source.with_name("__main__.py")
        if not source.is_file():
            raise UsageError(
                f"'{name}' is a package without __main__.py, which python -m cannot run. Name a "
                f"module of it: -m {name}.MODULE"
            )
    return Program(
        kind=ProgramKind.MODULE,
        target=name,
        source=str(source),
        function="",
        args=words[1:],
        cwd=str(shell.cwd),
        import_root=str(shell.cwd),
        fingerprint=fingerprint_of(source.read_bytes()),
        name=name.removesuffix(".__main__").rpartition(".")[2],
    )


def _command(word: str, known: Known, shell: Shell) -> Path | None:
    """Return the file of a command; None if there is none of that name."""
    found = shell.which(word, known)
    # autotune may be started by its path, with its environment's bin folder not on PATH.
    in_ours = shell.bin_dir / Path(word).name
    if found is None and in_ours.is_file():
        return in_ours
    return None if found is None else Path(found)


def _console_script(script: Path, words: tuple[str, ...], known: Known, shell: Shell) -> Program:
    """Return the program of a console script.

    The fingerprint is that of the entry point's file: the wrapper does not change with it.
    """
    # Binary, and only the beginning: the file may be any executable.
    with script.open("rb") as file:
        shebang = SHEBANG.match(file.read(1024))
    named = "" if shebang is None else os.fsdecode(shebang[1] or shebang[2])
    python = named and (shell.which(named, known) or named)
    if not python:
        raise other(words, known, shell) or UsageError(
            f"'{words[0]}' is {script}, which is not a Python program, so autotune cannot "
            "tune it. Name the Python program that it starts."
        )
    if not is_ours(python, shell):
        check_environment((python, str(script), *words[1:]), known, shell)
    program = parse_program(str(script), words[1:], shell.cwd)
    for point in metadata.entry_points(group="console_scripts", name=script.name):
        found = find_module(point.module, [Path(entry) for entry in sys.path if entry])
        if found is not None:
            fingerprint = fingerprint_of(found[1].read_bytes())
            program = replace(program, source=str(found[1]), fingerprint=fingerprint)
    return replace(program, name=script.name)
