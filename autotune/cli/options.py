"""Options and arguments of the commands, each declared once.

A command may have a parameter whose type is a dataclass of described fields, such as
``SearchRequest``. ``with_declared_options`` gives it an option for each field.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from autotune.cli import completion
from autotune.cli.messages import Messages, errors_told
from autotune.errors import UsageError, named
from autotune.program.fence_options import FenceKind, FenceOptions
from autotune.tuning.search_request import (
    FILES,
    MACHINES,
    Option,
    SearchRequest,
    described,
    option,
)

PROGRAM = (
    "what you train: train.py, file.py:function, module:function, or your usual command line, such "
    "as python -m package.train or torchrun --nproc-per-node 2 train.py. A '--' before it is "
    "optional; autotune's options come before it."
)
# Without it, click would also read options that stand after the program as autotune's.
PROGRAM_LAST = {"allow_interspersed_args": False, "ignore_unknown_options": False}
ProgramArgument = Annotated[str, typer.Argument(help=PROGRAM, metavar="PROGRAM")]
ModuleOption = Annotated[
    bool, typer.Option("-m", "--module", help="Train a module, as python -m does.", hidden=True)
]
ArgsArgument = Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", show_default=False)]
BudgetOption = Annotated[str, typer.Option(metavar="TIME", help="Wall time: 90s, 3m, 1h30m.")]
RanksOption = Annotated[
    int | None,
    typer.Option(
        "--nproc-per-node",
        min=1,
        hidden=True,
        help="Start this number of ranks on this machine, as torchrun does.",
    ),
]
AllowEnvOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES",
        help="Let the file set these environment variables. They are not known to tune and may "
        "load code. Repeatable.",
    ),
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print every trial, all values, all reasons.")
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print warnings, errors and the result alone.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Where to write the result. Default: ./best.yaml."
    ),
]
METAVARS = {str: "TEXT", int: "N", float: "N", Path: "PATH", list[str]: "TEXT", list[Path]: "PATH"}
FORCE = described(SearchRequest)["force"].help
ForceOption = Annotated[bool, typer.Option("--force", help=FORCE, hidden=True)]
SearchArgument = Annotated[
    str | None,
    typer.Argument(
        help="its name or folder; the latest by default.",
        metavar="[SEARCH]",
        autocompletion=completion.searches,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON; its keys are stable.")
]


@dataclass(frozen=True)
class FenceRequest:
    """What the command line says of the fence."""

    fence: str | None = option(
        None,
        "What keeps trials off your files: overlay, landlock, guard. Default: overlay or else "
        "landlock. guard redirects writes by Python's own functions alone: C libraries and "
        "subprocesses can then change your files, so name it only where that is harmless.",
        str,
        offers=[*FenceKind],
        panel=FILES,
    )
    scratch_dir: Path | None = option(
        None,
        "Local folder for what a trial writes until it ends.",
        Path,
        panel=FILES,
    )
    max_scratch: int | None = option(
        None,
        "Limit for what one trial may write: 20G. Default: a tenth of free space.",
        str,
        parse="size_bytes",
        panel=FILES,
    )
    cache_dir: list[Path] | None = option(
        None,
        "Folder of data that the program prepares at its start. Later trials reuse it. Repeatable.",
        list[Path],
        panel=FILES,
    )

    def options(self) -> FenceOptions:
        """Return the fence options.

        Raises:
            UsageError: No such fence or folder.
        """
        fences = {str(one): one for one in FenceKind}
        kind = None if self.fence is None else named("fence", self.fence, fences)
        if (folder := self.scratch_dir) is not None and not folder.is_dir():
            raise UsageError(f"--scratch-dir '{folder}' is not a folder. Create it first.")
        return FenceOptions(
            kind=kind,
            scratch_dir=folder,
            max_scratch_bytes=self.max_scratch,
            caches=tuple(self.cache_dir or ()),
        )


@dataclass(frozen=True)
class SharingRequest:
    """What the command line says of other machines.

    The help of the first two is that of the arguments of ``autotune.search()``.
    """

    storage: str | None = option(
        None, described(SearchRequest)["storage"].help, str, panel=MACHINES
    )
    serve: str | None = option(None, described(SearchRequest)["serve"].help, str, panel=MACHINES)
    workers: int | None = option(
        None,
        "Start this many searches by --executor and watch them, in place of one here. Ctrl-C ends "
        "the watching alone.",
        int,
        panel=MACHINES,
        least=1,
    )
    executor: str | None = option(
        None,
        "What starts them: local, slurm, ray, kubernetes or command. What it takes stands behind "
        "its name, in quotes: 'slurm --partition=gpu', or 'command qsub {line}'.",
        str,
        offers="executors",
        panel=MACHINES,
    )


@dataclass(frozen=True)
class StudyRequest:
    """Which study of several machines is looked at."""

    storage: str | None = option(
        None,
        "Look at a study of several machines, while it runs or after: who has joined it, what they "
        "do and have found. The URL is that of 'autotune search --storage'.",
        str,
        panel=MACHINES,
    )
    name: str | None = option(None, "Name of that study.", str, panel=MACHINES)

    @property
    def is_typed(self) -> bool:
        """Whether a study is meant, and not a search of this folder."""
        return self.storage is not None or self.name is not None


def with_declared_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each field of its parameters that are dataclasses."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    requests: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        if is_dataclass(parameter.annotation):
            requests[parameter.name] = parameter.annotation
            parameters += _parameters(parameter.annotation)
        else:
            parameters.append(parameter)

    @wraps(command)
    def taking(**typed: Any) -> None:
        with errors_told(Messages()):
            made = {name: _made(request, typed) for name, request in requests.items()}
        command(**made, **typed)

    taking.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    taking.__annotations__ = {one.name: one.annotation for one in parameters}
    return taking


def _parameters(request: Any) -> Iterator[inspect.Parameter]:
    """Yield the parameters, as typer reads them, of a dataclass's fields that can be typed."""
    for one in fields(request):
        its: Option = one.metadata["option"]
        if its.typed is None:
            continue
        default = one.default if isinstance(one.default, str | int | float) else None
        typed = typer.Option(
            *_words(one.name, its),
            help=its.help,
            min=its.least,
            metavar=METAVARS.get(its.typed),
            hidden=its.hidden,
            rich_help_panel=its.panel or None,
            autocompletion=_completion(its.offers),
        )
        yield inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[its.typed if its.typed is bool else its.typed | None, typed],
        )


def _words(name: str, its: Option) -> tuple[str, ...]:
    return its.words or (f"--{name.replace('_', '-')}",)


def _completion(offers: Sequence[str] | str) -> Callable[[str], list[str]] | None:
    if isinstance(offers, str):
        found: Callable[[str], list[str]] = getattr(completion, offers)
        return found

    def offered(incomplete: str) -> list[str]:  # typer reads the annotations of a function
        return completion.beginning(incomplete, offers)

    return offered if offers else None


def _made(request: Any, typed: dict[str, Any]) -> Any:
    """Return a request of what was typed for its fields, which are taken out of *typed*."""
    from autotune.knobs.space import options as parsers

    values: dict[str, Any] = {}
    for name, its in described(request).items():
        value = None if its.typed is None else typed.pop(name)
        if value is not None and value != []:
            parse = getattr(parsers, its.parse) if its.parse else None
            values[name] = value if parse is None else parse(value, _words(name, its)[0])
    return request(**values)
