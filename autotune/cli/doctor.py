"""The command ``doctor``, which looks at a machine and a program without searching."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.cli.messages import errors_told, verbosity
from autotune.cli.options import (
    ArgsArgument,
    FenceRequest,
    JsonOption,
    ModuleOption,
    ProgramArgument,
    QuietOption,
    RanksOption,
)
from autotune.cli.typed_line import program_typed
from autotune.errors import UsageError


def doctor(
    context: typer.Context,
    program: ProgramArgument = "",
    args: ArgsArgument = None,
    module: ModuleOption = False,
    nproc_per_node: RanksOption = None,
    report: Annotated[
        bool,
        typer.Option("--report", help="Print the machine and the versions, for a bug report."),
    ] = False,
    *,
    fence: FenceRequest,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find out what slows a program, or this machine, down.

    Without a program, the machine alone is looked at.
    """
    from autotune.cli import doctor_report
    from autotune.cli.console import Talk
    from autotune.program.environment import clash_of_names, require_torch

    console = Talk(verbosity(quiet=quiet))
    with errors_told(console):
        if clash := clash_of_names():
            console.warn(clash)
        if report:
            if program or as_json:
                raise UsageError("--report is about this machine alone: autotune doctor --report")
            doctor_report.show_report()
            return
        require_torch()
        subject = None
        if program:
            subject = program_typed(
                context, console, program, args, is_module=module, ranks=nproc_per_node
            )
        doctor_report.examine(subject, console, fence.options(), as_json=as_json)
