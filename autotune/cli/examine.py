"""The commands ``doctor`` and ``knobs``, which look at a program without searching."""

from __future__ import annotations

import sys

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
    *,
    fence: FenceRequest,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find out where a program's step goes, and what slows it and this machine down.

    Without a program, the machine alone is looked at.
    """
    from autotune.cli import doctor as examining
    from autotune.cli.console import Console

    console = Console(verbosity(quiet=quiet))
    with errors_told(console):
        subject = None
        if program:
            subject = program_typed(
                context, console, program, args, is_module=module, ranks=nproc_per_node
            )
        examining.examine(subject, console, fence.options(), as_json=as_json)


def knobs(
    context: typer.Context,
    program: ProgramArgument = "",
    args: ArgsArgument = None,
    module: ModuleOption = False,
    *,
    fence: FenceRequest,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """List all knobs: the values that a search would try on a program, or why not."""
    from autotune.cli import knob_sheet
    from autotune.cli.console import Console
    from autotune.machine import hardware
    from autotune.rig.open_rig import Reports
    from autotune.tuning.start.observe import observe

    console = Console(verbosity(quiet=quiet))
    with errors_told(console):
        if not program and as_json:
            raise UsageError("--json is about a program: autotune knobs --json train.py")
        if not program:
            knob_sheet.show_all()
            return
        subject = program_typed(context, console, program, args, is_module=module)
        machine = hardware.detect(subject.visible_devices)
        reports = Reports(warning=console.warn, note=console.note)
        here = observe(subject, machine, fence.options(), reports)
    rows = knob_sheet.rows(here.hardware, here.profile)
    if as_json:
        sys.stdout.write(knob_sheet.as_json(rows, str(subject), here.profile.flags) + "\n")
    else:
        knob_sheet.show(rows, str(subject), here.profile.flags)
