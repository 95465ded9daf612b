"""Read the end of a command line: a script, ``-m MODULE``, a function or a console script."""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from autotune.errors import UsageError, did_you_mean
from autotune.program.installed_modules import find_module
from autotune.program.line.base import Known, Shell
from autotune.program.line.hydra import refuse_multirun
from autotune.program.line.python import check_environment, is_ours
from autotune.program.program import Program, ProgramKind, fingerprint_of, parse_program

SHEBANG = re.compile(rb"#!\s*(\S+)(?:\s+(\S+))?")
LONG_SHEBANG = re.compile(rb"'''exec' \"?([^\"\s]+)")  # pip's, where the path is long or has spaces


def program_at(words: tuple[str, ...], known: Known, shell: Shell) -> Program:
    """Return the program that the remaining words name, with what was read before them.

    Raises:
        UsageError: There is no such program, or autotune cannot start it.
    """
    if words[:1] == ("-m",):
        program = _module(words[1:], known, shell)
    elif not known.is_python and (script := console_script(words[0], known, shell)):
        program = _console_script(script, words, known, shell)
    else:
        program = parse_program(words[0], words[1:], shell.cwd)
    if program.source:
        refuse_multirun(program, Path(program.source).read_bytes())
    return replace(
        program,
        ranks=known.ranks,
        env=known.env,
        python_options=known.python_options,
        warning_filters=known.warning_filters,
        import_root="" if known.is_safe_path else program.import_root,
    )


def _module(words: tuple[str, ...], known: Known, shell: Shell) -> Program:
    """Return the program of ``python -m MODULE``.

    Raises:
        UsageError: The module does not exist, or is a package without ``__main__.py``.
    """
    if not words:
        raise UsageError("-m needs the name of a module: autotune search -m package.module")
    name = words[0]
    if name.endswith(".py") or "/" in name:
        mend = name.removesuffix(".py").strip("./").replace("/", ".")
        raise UsageError(
            f"-m takes the name of a module, not the file '{name}'. Type -m {mend}, or {name} "
            "without -m."
        )
    roots = _import_path(known, shell)
    if known.is_safe_path:  # python -P does not import from the current directory
        roots = roots[1:]
    found = find_module(name, roots)
    if found is None:
        raise UsageError(_no_module(name, shell))
    source = found[1]
    if source.name == "__init__.py":  # python -m PACKAGE runs its __main__.py
        source = source.with_name("__main__.py")
        if not source.is_file():
            raise UsageError(_no_main(name, source.parent))
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


def _import_path(known: Known, shell: Shell) -> list[Path]:
    """Return the folders from which the program imports, in order."""
    added = filter(None, (known.env.get("PYTHONPATH") or "").split(os.pathsep))
    return [shell.cwd, *(shell.cwd / folder for folder in added), *map(Path, sys.path)]


def _no_module(name: str, shell: Shell) -> str:
    top = name.partition(".")[0]
    near = [
        p.stem for p in shell.cwd.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()
    ]
    hint = did_you_mean(top, near) if top not in near else ""
    return (
        f"There is no module '{name}' in {shell.cwd} or on the import path.{hint} Start autotune "
        f"where 'python -m {name}' works."
    )


def _no_main(name: str, package: Path) -> str:
    modules = sorted(p.stem for p in package.glob("*.py") if not p.stem.startswith("_"))
    one = f" Name a module of it, such as -m {name}.{modules[0]}" if modules else ""
    return f"'{name}' is a package without __main__.py, which python -m cannot run.{one}"


def console_script(word: str, known: Known, shell: Shell) -> Path | None:
    """Return the file of a console script that a word names; None if the word is something else."""
    is_path = "/" in word or ":" in word or word.endswith(".py") or (shell.cwd / word).is_file()
    if is_path and Path(word).parent.resolve() != shell.bin_dir.resolve():
        return None
    found = shell.which(word, known)
    # autotune may be started by its path, with its environment's bin folder not on PATH.
    in_ours = shell.bin_dir / Path(word).name
    if found is None and in_ours.is_file():
        found = str(in_ours)
    return None if found is None else Path(found)


def _console_script(script: Path, words: tuple[str, ...], known: Known, shell: Shell) -> Program:
    """Return the program of a console script.

    The generated wrapper is what runs. The fingerprint is computed from the entry point's file,
    because the wrapper does not change when the program does.
    """
    python = _python_of(script, known, shell)
    if python is None:
        raise UsageError(
            f"'{words[0]}' is {script}, which is not a Python program, so autotune cannot "
            "tune it. Name the Python program that it starts."
        )
    if not is_ours(python, shell):
        try:
            check_environment((python,), known, shell)
        except UsageError as error:  # the line to type must name the command, not its interpreter
            raise UsageError(
                str(error).replace(f"-- {shlex.quote(python)}", f"-- {shlex.join(words)}")
            ) from error
    program = parse_program(str(script), words[1:], shell.cwd)
    points = metadata.entry_points(group="console_scripts", name=script.name)
    for point in points:
        found = find_module(point.module, [Path(entry) for entry in sys.path if entry])
        if found is not None:
            source = str(found[1])
            fingerprint = fingerprint_of(found[1].read_bytes())
            program = replace(program, source=source, fingerprint=fingerprint)
    return replace(program, name=script.name)


def _python_of(script: Path, known: Known, shell: Shell) -> str | None:
    """Return the interpreter in a script's shebang; None if there is none or it is not Python."""
    # Binary, and only the beginning: the file may be any executable.
    with script.open("rb") as file:
        head = file.read(1024)
    first = SHEBANG.match(head)
    if first is None:
        return None
    named, argument = (os.fsdecode(part or b"") for part in first.groups())
    if long := LONG_SHEBANG.search(head):
        named = os.fsdecode(long[1])
    if Path(named).name == "env":
        named = shell.which(argument, known) or argument
    return named if "python" in Path(named).name else None
