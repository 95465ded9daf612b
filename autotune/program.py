"""Program: the user's training script or function, with its arguments; and how it is launched."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from autotune.errors import UsageError, did_you_mean


class ProgramKind(StrEnum):
    """How a program is started."""

    SCRIPT = "script"
    FILE_FUNCTION = "function in a file"
    MODULE_FUNCTION = "function in a module"
    PICKLED_FUNCTION = "pickled function"


@dataclass(frozen=True)
class Program:
    """The user's program.

    Attributes:
        target: Absolute path of the script, source file or pickle; or the module's dotted name.
        function: Name of the function, empty for a script.
        args: Its arguments: ``sys.argv[1:]``, which functions receive as positional arguments too.
        cwd: Directory it runs in.
        fingerprint: SHA-256 of its source; a changed program invalidates measurements.
        name: Short name for directories and headings.
    """

    kind: ProgramKind
    target: str
    function: str
    args: tuple[str, ...]
    cwd: str
    fingerprint: str
    name: str

    def __str__(self) -> str:
        base = self.target if self.kind is ProgramKind.MODULE_FUNCTION else self._short_target
        call = f"{base}:{self.function}" if self.function else base
        return " ".join([call, *self.args])

    @property
    def _short_target(self) -> str:
        return os.path.relpath(self.target, self.cwd)

    def is_same_as(self, other: Program) -> bool:
        """Tell whether both are one program with one set of arguments, whatever its source now."""
        return (self.kind, self.target, self.function, self.args) == (
            other.kind,
            other.target,
            other.function,
            other.args,
        )


@dataclass(frozen=True)
class LaunchPlan:
    """How one rig or run process is started: argument list, added environment, directory."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict)

    def with_env(self, **variables: str) -> LaunchPlan:
        """Return a copy with environment variables added."""
        return replace(self, env={**self.env, **variables})


def python_plan(module: str, *arguments: str, cwd: str) -> LaunchPlan:
    """Return the plan that runs a module of ours; -P keeps the user's cwd out of its imports."""
    return LaunchPlan((sys.executable, "-P", "-m", module, *arguments), cwd)


def parse_program(text: str, args: Sequence[str] = (), cwd: Path | None = None) -> Program:
    """Return the program named by ``train.py``, ``file.py:function`` or ``module:function``.

    Raises:
        UsageError: when there is no such file or module.
    """
    cwd = (cwd or Path.cwd()).resolve()
    target, _, function = text.partition(":")
    if function and not target.endswith(".py"):
        source = _module_source(target, cwd)
        return Program(
            ProgramKind.MODULE_FUNCTION,
            target,
            function,
            tuple(args),
            str(cwd),
            _fingerprint(source.read_bytes()),
            function,
        )
    path = (cwd / target).resolve()
    if not path.is_file():
        raise UsageError(_missing_file(target, path, cwd))
    kind = ProgramKind.FILE_FUNCTION if function else ProgramKind.SCRIPT
    fingerprint = _fingerprint(path.read_bytes())
    name = function or path.stem
    return Program(kind, str(path), function, tuple(args), str(cwd), fingerprint, name)


def program_of(function: Callable[..., Any], args: Sequence[str], pickle_dir: Path) -> Program:
    """Return the program that calls *function*.

    A function that a fresh process can import is named; one from a script's ``__main__``, a
    notebook or another function's body is written by cloudpickle.

    Args:
        function: The training function.
        args: Positional arguments, as strings.
        pickle_dir: Where the pickle goes, if one is needed.
    """
    name = function.__name__
    fingerprint = _fingerprint(_source_of(function).encode())
    cwd = str(Path.cwd())
    if _is_importable(function):
        source = inspect.getsourcefile(function)
        assert source is not None, "an importable function has a source file"
        path = str(Path(source).resolve())
        kind, target = (
            (ProgramKind.MODULE_FUNCTION, function.__module__)
            if "." in function.__module__
            else (ProgramKind.FILE_FUNCTION, path)
        )
        return Program(kind, target, name, tuple(args), cwd, fingerprint, name)
    import cloudpickle

    path_of_pickle = pickle_dir / "program.pkl"
    path_of_pickle.write_bytes(cloudpickle.dumps(function))
    kind = ProgramKind.PICKLED_FUNCTION
    return Program(kind, str(path_of_pickle), name, tuple(args), cwd, fingerprint, name)


def _is_importable(function: Callable[..., Any]) -> bool:
    module = sys.modules.get(function.__module__)
    return (
        function.__module__ != "__main__"
        and getattr(module, function.__qualname__, None) is function
        and inspect.getsourcefile(function) is not None
    )


def _source_of(function: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return function.__qualname__


def _fingerprint(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()


def _missing_file(target: str, path: Path, cwd: Path) -> str:
    if path.is_dir():
        return f"'{target}' is a directory. Name the training script in it: {target}/train.py"
    scripts = sorted(p.name for p in path.parent.glob("*.py")) if path.parent.is_dir() else []
    hint = did_you_mean(path.name, scripts) or f" Paths are taken from {cwd}."
    return f"There is no program '{target}'.{hint}"


def _module_source(dotted: str, cwd: Path) -> Path:
    """Find a module's file without importing it: its package may import torch."""
    relative = Path(*dotted.split("."))
    for entry in (cwd, *map(Path, sys.path)):
        for candidate in (entry / relative.with_suffix(".py"), entry / relative / "__init__.py"):
            if candidate.is_file():
                return candidate
    importlib.invalidate_caches()
    raise UsageError(
        f"There is no module '{dotted}' on the import path. Name its file instead "
        f"('path/to/file.py:function'), or run autotune where 'import {dotted}' works."
    )
