"""The commands ``doctor`` and ``knobs``, which look at a program without searching."""

from __future__ import annotations

import sys

import typer

from autotune.cli.exits import errors_told
from autotune.cli.messages import verbosity
from autotune.cli.options import (
    ArgsArgument,
    FenceRequest,
    JsonOption,
    ModuleOption,
    OptionalProgramArgument,
    QuietOption,
    RanksOption,
)
from autotune.cli.typed_line import program_typed


def doctor(
    context: typer.Context,
    program: OptionalProgramArgument = None,
    args: ArgsArgument = None,
    module: ModuleOption = False,
    nproc_per_node: RanksOption = None,
    *,
    fence: FenceRequest,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find out where a program's step goes, and what slows it and this machine down."""
    from autotune.cli import doctor as examining
    from autotune.cli.console import Console

    console = Console(verbosity(quiet=quiet))
    with errors_told(console):
        subject = (
            None
            if program is None
            else program_typed(
                context, console, program, args, is_module=module, ranks=nproc_per_node
            )
        )
        examining.examine(subject, console, fence.options(), as_json=as_json)


def knobs(
    context: typer.Context,
    program: OptionalProgramArgument = None,
    args: ArgsArgument = None,
    module: ModuleOption = False,
    *,
    fence: FenceRequest,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """List all knobs: the values that a search would try here, or why a knob is not offered."""
    from autotune.cli import knob_sheet
    from autotune.cli.console import Console
    from autotune.knobs.base import Here
    from autotune.machine import hardware
    from autotune.program.typical_profile import ordinary_program
    from autotune.rig.open_rig import Reports
    from autotune.tuning.start.observe import observe

    console = Console(verbosity(quiet=quiet))
    with errors_told(console):
        if program is None:
            machine = hardware.detect(None)
            about = "a typical image classifier on this machine; name a program to inspect it"
            here = Here(machine, ordinary_program("cuda" if machine.gpus else "cpu"))
        else:
            subject = program_typed(context, console, program, args, is_module=module)
            machine = hardware.detect(subject.visible_devices)
            reports = Reports(warning=console.warn, note=console.note)
            about, here = str(subject), observe(subject, machine, fence.options(), reports)
    rows = knob_sheet.rows(here.hardware, here.profile)
    if as_json:
        sys.stdout.write(knob_sheet.as_json(rows, about, here.profile.flags) + "\n")
    else:
        knob_sheet.show(rows, about, here.profile.flags)
