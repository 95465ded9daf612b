"""Program: the user's training script or function with its arguments, and how it is started.

A Program is a value: it names what to start and carries a fingerprint that tells whether the source
has changed. A LaunchPlan is one concrete process: argument list, environment and number of ranks.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from autotune.errors import UsageError, did_you_mean
from autotune.files import access
from autotune.measurement.outcome import RunMode
from autotune.program.config import KnobValue
from autotune.program.flags import AS_WRITTEN, KEYWORD, Flag, as_text
from autotune.program.sources import Files


class ProgramKind(StrEnum):
    """What kind of target a program is, which decides how a rig starts it."""

    SCRIPT = "script"
    MODULE = "module"
    FILE_FUNCTION = "function in a file"
    MODULE_FUNCTION = "function in a module"
    PICKLED_FUNCTION = "pickled function"


@dataclass(frozen=True)
class Program:
    """The user's program, with everything needed to start it the way the user does.

    Attributes:
        target: Absolute path of the script, source file or pickle; or the module's dotted name.
        source: Absolute path of the file that trains, from which the fingerprint is computed. For a
            console script this is the file of its entry point. Empty for a pickle.
        args: Its arguments (``sys.argv[1:]``). Functions also receive them as positional arguments.
        import_root: Directory that comes first on ``sys.path``; empty under ``python -P``.
        fingerprint: SHA-256 of its source, or of its pickle, which is run only as it was written. A
            changed program invalidates earlier measurements.
        ranks: Number of ranks that torchrun starts; None if it is started as one process.
        mode: How rigs must run it so that it trains, as found out by earlier rigs.
        command: The words before its arguments as the user typed them; empty if the user typed only
            the program's name.
        path_typed: The script's path as the user typed it, which becomes ``sys.argv[0]``.
        warning_filters: Values of ``python -W``. They are installed when the program begins and not
            on the interpreter's command line, because ``-W error`` would turn warnings of
            autotune's own imports into errors.
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
            # A line that begins with an interpreter option, such as -u, needs "--" in front of it,
            # or autotune's own parser would take the option for one of autotune's.
            is_option = self.command[0].startswith("-") and self.command[0] != "-m"
            options_end = ("--",) if is_option else ()
            return shlex.join([*options_end, *self.command, *self.args])
        is_named = self.kind is ProgramKind.MODULE_FUNCTION
        base = self.target if is_named else os.path.relpath(self.target, self.cwd)
        call = f"{base}:{self.function}" if self.function else base
        return shlex.join([call, *self.args])

    @property
    def typed(self) -> str:
        """The line that starts it without autotune; empty for a function."""
        if self.function or self.kind is ProgramKind.PICKLED_FUNCTION:
            return ""
        line = str(self).removeprefix("-- ")
        starts_itself = bool(self.command) and not self.command[0].startswith("-")
        ranks = "" if self.ranks is None else f"torchrun --nproc-per-node {self.ranks} "
        return line if starts_itself else f"{ranks or 'python '}{line}"

    @property
    def file_name(self) -> str:
        """The name users know it by: the name of its file, or the short name if it has no file."""
        return Path(self.source).name or self.name

    @property
    def words(self) -> tuple[str, ...]:
        """The shortest command line from which ``autotune run``'s process reads this program again.

        Variables, ranks and interpreter options are not among them: that process has them already.
        """
        target = self.path_typed or self.target
        # A script at "tools/time" or "lr=1/train" would be read as a command or a variable. After
        # an interpreter option it is read as a script; -q has no effect here.
        is_odd = "=" in target or not target.endswith(".py")
        is_file = self.kind is not ProgramKind.MODULE and self.target == self.source
        return (
            *self._interpreter_words,
            *(("-q",) if is_odd and is_file else ()),
            *self._target_words,
        )

    @property
    def own_plan(self) -> LaunchPlan | None:
        """The plan that starts it without autotune; None if it is a function.

        Its command line's variables and ranks are not part of it.
        """
        if self.function or self.kind is ProgramKind.PICKLED_FUNCTION:
            return None
        argv = sys.executable, *self.python_options, *self._interpreter_words, *self._target_words
        return LaunchPlan(argv, self.cwd)

    @property
    def _interpreter_words(self) -> tuple[str, ...]:
        """Options of the interpreter that are set when the program begins."""
        filters = [word for value in self.warning_filters for word in ("-W", value)]
        return (*filters, *(() if self.import_root else ("-P",)))

    @property
    def _target_words(self) -> tuple[str, ...]:
        """What the interpreter runs, with the program's arguments."""
        if self.kind is ProgramKind.MODULE:
            return ("-m", self.target, *self.args)
        target = self.path_typed or self.target
        return (f"{target}:{self.function}" if self.function else target, *self.args)

    @property
    def visible_devices(self) -> str | None:
        """The CUDA_VISIBLE_DEVICES that its command line sets; None if it sets none."""
        return self.env.get("CUDA_VISIBLE_DEVICES")

    @property
    def files(self) -> Files:
        """Its source file or pickle, by its path, with the fingerprint."""
        file = self.target if self.kind is ProgramKind.PICKLED_FUNCTION else self.source
        return {file: self.fingerprint}


@dataclass(frozen=True)
class LaunchPlan:
    """How to start one process: a rig, a training run, or a helper module of autotune.

    Attributes:
        env: Variables added to this process's environment.
        ranks: Number of ranks that torchrun starts on this machine; None for one process.
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
        """The shell command that starts it, for the user to type."""
        return shlex.join([*(f"{name}={value}" for name, value in self.env.items()), *self.argv])

    def variable(self, name: str) -> str:
        """Return an environment variable as the process will see it; empty if it is unset."""
        return self.env.get(name, os.environ.get(name, ""))

    def with_env(self, **variables: str) -> LaunchPlan:
        """Return a copy with environment variables added."""
        return replace(self, env={**self.env, **variables})

    def with_flag(self, flag: Flag, value: KnobValue) -> LaunchPlan:
        """Return a copy with a value for one of the program's flags or keywords."""
        if value == AS_WRITTEN:
            return self
        if flag.name.startswith(KEYWORD):
            keyword = flag.name.removeprefix(KEYWORD)
            return replace(self, keywords={**self.keywords, keyword: flag.typed(value)})
        return replace(self, args=flag.into(self.args, as_text(value)))

    def of(self, program: Program) -> Program:
        """Return the program with the arguments that this plan gives it."""
        return replace(program, args=self.args, keywords=self.keywords)


def python_plan(module: str, *arguments: str, cwd: str, options: Sequence[str] = ()) -> LaunchPlan:
    """Return the plan that runs one of autotune's own modules with this interpreter.

    The interpreter gets ``-P``, so that files in the user's directory, such as a ``random.py``,
    cannot shadow the modules that autotune imports.
    """
    return LaunchPlan((sys.executable, *options, "-P", "-m", module, *arguments), cwd)


def parse_program(text: str, args: Sequence[str] = (), cwd: Path | None = None) -> Program:
    """Return the program named by ``train.py``, ``file.py:function`` or ``module:function``.

    The source file is read for its fingerprint, but nothing is imported or started. Paths are
    taken from *cwd*, by default the current directory.

    Raises:
        UsageError: There is no such file or module.
    """
    cwd = (cwd or Path.cwd()).resolve()
    target, _, function = text.partition(":")
    if function and not target.endswith(".py"):
        root, source = _module(target, cwd)
        kind = ProgramKind.MODULE_FUNCTION
    else:
        source = (cwd / target).resolve()
        if not source.is_file():
            if source.is_dir():
                raise UsageError(
                    f"'{target}' is a directory. Name the training script in it: {target}/train.py"
                )
            here = source.parent
            scripts = sorted(p.name for p in here.glob("*.py")) if here.is_dir() else []
            hint = did_you_mean(source.name, scripts) or f" Paths are taken from {cwd}."
            raise UsageError(f"There is no program '{target}'.{hint}")
        # Python puts the script's own folder on sys.path, not the current directory.
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
        path_typed=text if kind is ProgramKind.SCRIPT else "",
    )


def program_of(function: Callable[..., Any], args: Sequence[str], pickle_dir: Path) -> Program:
    """Return the program that calls *function*, by name if a fresh process can import it.

    A function from a script's ``__main__``, a notebook or the body of another function cannot be
    imported and is pickled with cloudpickle.
    """
    module, name = function.__module__, function.__name__
    # A fresh process has another __main__. A nested function has "<locals>" in its qualified name
    # and is not found; neither is one whose name now refers to something else, such as a wrapper.
    found = getattr(sys.modules.get(module), function.__qualname__, None)
    is_importable = module != "__main__" and found is function
    if is_importable and inspect.getsourcefile(function) is not None:
        root, source = _module(module, Path.cwd())
        kind, target, content = ProgramKind.MODULE_FUNCTION, module, source.read_bytes()
    else:
        import cloudpickle

        pickle_path, content = pickle_dir / "program.pkl", cloudpickle.dumps(function)
        access.write(pickle_path, content, private=True)  # it holds what the function holds
        kind, target, root = ProgramKind.PICKLED_FUNCTION, str(pickle_path), Path.cwd()
        source = Path()
    return Program(
        kind=kind,
        target=target,
        source=str(source),
        function=name,
        args=tuple(args),
        cwd=str(Path.cwd()),
        import_root=str(root),
        fingerprint=fingerprint_of(content),
        name=name,
    )


def fingerprint_of(source: bytes) -> str:
    """Return a hash of the source that changes whenever the program changes."""
    return hashlib.sha256(source).hexdigest()


def find_module(dotted: str, roots: Iterable[Path]) -> tuple[Path, Path] | None:
    """Return the import root and the file of a module (``__init__.py`` for a package), or None.

    It is not imported: that runs its code, and may import torch. The folders are searched first; a
    module that is not in them may still be installed in editable mode.
    """
    relative = Path(*dotted.split("."))
    places = [(root, root / relative) for root in (Path(entry).resolve() for entry in roots)]
    for root, place in (*places, *_installed_in_place(dotted)):
        for source in (place.with_suffix(".py"), place / "__init__.py"):
            if source.is_file():
                return root, source
    return None


def _installed_in_place(dotted: str) -> Iterator[tuple[Path, Path]]:
    """Yield where a module of a package is that was installed with ``pip install -e``.

    Only the import system knows where: such an install may register an import finder.
    """
    # Only the top package is looked up: find_spec() of a submodule would import its parents.
    top, *below = dotted.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # ValueError: a module without a spec, such as __main__
        return
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        package = Path(place).resolve()
        yield package.parent, package.joinpath(*below)


def _module(dotted: str, cwd: Path) -> tuple[Path, Path]:
    found = find_module(dotted, (cwd, *map(Path, sys.path)))
    if found is None:
        raise UsageError(
            f"There is no module '{dotted}' on the import path. Name its file instead "
            f"('path/to/file.py:function'), or run autotune where 'import {dotted}' works."
        )
    return found
