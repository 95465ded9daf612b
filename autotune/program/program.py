"""Program: the user's training script or function, with its arguments; and how it is launched."""

from __future__ import annotations

import hashlib
import inspect
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from autotune.errors import UsageError, did_you_mean
from autotune.measurement.run_mode import RunMode
from autotune.program.config import KnobValue
from autotune.program.flags import AS_WRITTEN, KEYWORD, Flag, as_text
from autotune.program.installed_modules import find_module


class ProgramKind(StrEnum):
    """How a program is started."""

    SCRIPT = "script"
    MODULE = "module"
    FILE_FUNCTION = "function in a file"
    MODULE_FUNCTION = "function in a module"
    PICKLED_FUNCTION = "pickled function"


@dataclass(frozen=True)
class Program:
    """The user's program.

    Attributes:
        target: Absolute path of the script, source file or pickle; or the module's dotted name.
        source: Absolute path of the file that trains, of which the fingerprint is; for a console
            script the file of its entry point. Empty for a pickle.
        function: Name of the function, empty for a script.
        args: Its arguments: ``sys.argv[1:]``, which functions receive as positional arguments too.
        cwd: Directory it runs in.
        import_root: Directory that comes first on ``sys.path``; empty under ``python -P``.
        fingerprint: SHA-256 of its source; a changed program invalidates measurements.
        name: Short name for directories and headings.
        keywords: Keyword arguments that the function gets besides.
        ranks: How many ranks of it torchrun starts; None where it is started as one process.
        mode: What it takes for it to train in a rig, as earlier rigs have shown.
        command: The words before its arguments, as they were typed; empty for the short form.
        path_typed: The script's path as it was typed, which is its ``sys.argv[0]``.
        env: Variables that its line sets.
        python_options: Options of the interpreter, such as ``-u``.
        warning_filters: Values of ``python -W``. They are set when the program begins, because
            they must not turn warnings of autotune's own imports into errors.
    """

    kind: ProgramKind
    target: str
    source: str
    function: str
    args: tuple[str, ...]
    cwd: str
    import_root: str
    fingerprint: str
    name: str
    keywords: Mapping[str, KnobValue] = field(default_factory=dict)
    ranks: int | None = None
    mode: RunMode = field(default_factory=RunMode)
    command: tuple[str, ...] = ()
    path_typed: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    python_options: tuple[str, ...] = ()
    warning_filters: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.command:
            is_option = self.command[0].startswith("-") and self.command[0] != "-m"
            options_end = ("--",) if is_option else ()
            return shlex.join([*options_end, *self.command, *self.args])
        base = self.target if self.kind is ProgramKind.MODULE_FUNCTION else self._short_target
        call = f"{base}:{self.function}" if self.function else base
        return shlex.join([call, *self.args])

    @property
    def file_name(self) -> str:
        """How users call it: the name of its file, without one the short name."""
        return Path(self.source).name or self.name

    @property
    def _short_target(self) -> str:
        return os.path.relpath(self.target, self.cwd)

    @property
    def words(self) -> tuple[str, ...]:
        """The shortest line that a process of ours, started for it, reads as this program.

        Variables, ranks and options of the interpreter are not in it: that process has them.
        """
        filters = [word for value in self.warning_filters for word in ("-W", value)]
        safe_path = [] if self.import_root else ["-P"]
        if self.kind is ProgramKind.MODULE:
            return (*filters, *safe_path, "-m", self.target, *self.args)
        target = self.path_typed or self.target
        # "tools/time" and "lr=1/train" look like something else; behind an option, here without
        # effect, they are read as scripts
        is_odd = "=" in target or not target.endswith(".py")
        as_python = ["-q"] if is_odd and self.target == self.source else []
        name = f"{target}:{self.function}" if self.function else target
        return (*filters, *safe_path, *as_python, name, *self.args)

    @property
    def visible_devices(self) -> str | None:
        """CUDA_VISIBLE_DEVICES, where its line sets it."""
        return self.env.get("CUDA_VISIBLE_DEVICES")

    @property
    def has_changed(self) -> bool:
        """Its source file is not what it was; a pickled function never changes."""
        if self.kind is ProgramKind.PICKLED_FUNCTION:
            return False
        source = Path(self.source)
        return not source.is_file() or fingerprint_of(source.read_bytes()) != self.fingerprint


@dataclass(frozen=True)
class LaunchPlan:
    """How one rig or run process is started.

    Attributes:
        argv: The process's own argument list.
        env: Variables added to the environment.
        args: The program's arguments.
        keywords: Keyword arguments of the program's function.
        ranks: How many ranks of it torchrun starts on this machine; None starts one process alone.
        pass_fds: Open descriptors that the process inherits.
    """

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    keywords: Mapping[str, KnobValue] = field(default_factory=dict)
    ranks: int | None = None
    pass_fds: tuple[int, ...] = ()

    @property
    def command(self) -> str:
        """What to type in a shell to start it."""
        return shlex.join([*(f"{name}={value}" for name, value in self.env.items()), *self.argv])

    def variable(self, name: str) -> str:
        """Return an environment variable as the process will see it, empty where it is unset."""
        return self.env.get(name, os.environ.get(name, ""))

    def with_env(self, **variables: str) -> LaunchPlan:
        """Return a copy with environment variables added."""
        return replace(self, env={**self.env, **variables})

    def with_flag(self, flag: Flag, value: KnobValue) -> LaunchPlan:
        """Return a copy in which a flag or keyword of the program has a value."""
        if value == AS_WRITTEN:
            return self
        if flag.name.startswith(KEYWORD):
            keyword = flag.name.removeprefix(KEYWORD)
            return replace(self, keywords={**self.keywords, keyword: flag.typed(value)})
        return replace(self, args=flag.into(self.args, as_text(value)))

    def of(self, program: Program) -> Program:
        """Return the program as it is started by this plan."""
        return replace(program, args=self.args, keywords=self.keywords)


def python_plan(module: str, *arguments: str, cwd: str, options: Sequence[str] = ()) -> LaunchPlan:
    """Return the plan that runs a module of ours; -P keeps the user's cwd out of its imports.

    Args:
        module: Its dotted name.
        arguments: What it gets.
        cwd: Where it runs.
        options: Further options of the interpreter.
    """
    return LaunchPlan((sys.executable, *options, "-P", "-m", module, *arguments), cwd)


def parse_program(
    text: str, args: Sequence[str] = (), cwd: Path | None = None, ranks: int | None = None
) -> Program:
    """Return the program named by ``train.py``, ``file.py:function`` or ``module:function``.

    Args:
        text: Its name.
        args: Its arguments.
        cwd: Where it runs.
        ranks: How many ranks of it torchrun starts; None for a program of one process.

    Raises:
        UsageError: when there is no such file or module.
    """
    cwd = (cwd or Path.cwd()).resolve()
    target, _, function = text.partition(":")
    if function and not target.endswith(".py"):
        root, source = _module(target, cwd)
        kind = ProgramKind.MODULE_FUNCTION
    else:
        source = (cwd / target).resolve()
        if not source.is_file():
            raise UsageError(_missing_file(target, source, cwd))
        root, target = source.parent, str(source)
        kind = ProgramKind.FILE_FUNCTION if function else ProgramKind.SCRIPT
    return Program(
        kind=kind,
        target=target,
        source=str(source),
        function=function,
        args=tuple(args),
        cwd=str(cwd),
        import_root=str(root),
        fingerprint=fingerprint_of(source.read_bytes()),
        name=function or source.stem,
        ranks=ranks,
        path_typed=text if kind is ProgramKind.SCRIPT else "",
    )


def program_of(function: Callable[..., Any], args: Sequence[str], pickle_dir: Path) -> Program:
    """Return the program that calls *function*.

    A function that a fresh process can import is named; one from a script's ``__main__``, a
    notebook or another function's body is written by cloudpickle.

    Args:
        function: The training function.
        args: Positional arguments, as strings.
        pickle_dir: Where the pickle goes, if one is needed.
    """
    module, name = function.__module__, function.__name__
    if _is_importable(function):
        root, source = _module(module, Path.cwd())
        kind, target = ProgramKind.MODULE_FUNCTION, module
        fingerprint = fingerprint_of(source.read_bytes())
    else:
        import cloudpickle

        pickle_path = pickle_dir / "program.pkl"
        pickle_path.write_bytes(cloudpickle.dumps(function))
        kind, target, root = ProgramKind.PICKLED_FUNCTION, str(pickle_path), Path.cwd()
        source, fingerprint = Path(), fingerprint_of(_source_of(function).encode())
    return Program(
        kind=kind,
        target=target,
        source=str(source),
        function=name,
        args=tuple(args),
        cwd=str(Path.cwd()),
        import_root=str(root),
        fingerprint=fingerprint,
        name=name,
    )


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


def fingerprint_of(source: bytes) -> str:
    """Return what tells a program from a changed one."""
    return hashlib.sha256(source).hexdigest()


def _missing_file(target: str, path: Path, cwd: Path) -> str:
    if path.is_dir():
        return f"'{target}' is a directory. Name the training script in it: {target}/train.py"
    scripts = sorted(p.name for p in path.parent.glob("*.py")) if path.parent.is_dir() else []
    hint = did_you_mean(path.name, scripts) or f" Paths are taken from {cwd}."
    return f"There is no program '{target}'.{hint}"


def _module(dotted: str, cwd: Path) -> tuple[Path, Path]:
    found = find_module(dotted, (cwd, *map(Path, sys.path)))
    if found is None:
        raise UsageError(
            f"There is no module '{dotted}' on the import path. Name its file instead "
            f"('path/to/file.py:function'), or run autotune where 'import {dotted}' works."
        )
    return found
