"""The command line ``autotune``: its commands by name.

autotune's own options come before the program; everything after the program's name belongs to the
program.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from importlib.resources import files
from typing import Annotated

import typer

from autotune import __version__
from autotune.cli import compare, doctor, past_runs, search, train
from autotune.cli.command_line import Command, Group
from autotune.cli.exit_status import ExitStatus
from autotune.cli.messages import outlive_readers
from autotune.cli.options import PROGRAM_LAST, with_declared_options
from autotune.program.environment import clash_of_names

app = typer.Typer(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Make a PyTorch training program faster on this machine, without changing it.",
    pretty_exceptions_enable=False,
)


def skill() -> None:
    """Print instructions for coding agents: procedure, JSON keys, exit codes, what never to do."""
    text = files("autotune.cli").joinpath("SKILL.md").read_text(encoding="utf-8")
    typer.echo(text, nl=False)


# In the order in which people need them; the last is for machines
COMMANDS: tuple[Callable[..., None], ...] = (
    *(search.search, train.run, search.resume, compare.compare, doctor.doctor),
    *(past_runs.show, past_runs.export, skill),
)
for function in COMMANDS:
    has_program = "program" in function.__annotations__
    app.command(
        cls=Command,
        context_settings=PROGRAM_LAST if has_program else None,
        hidden=function is skill,
    )(with_declared_options(function))


@app.callback(invoke_without_command=True)
def _without_a_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        typer.echo(f"autotune {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command line.

    Python would end with 1 after a defect, which is what a gate says of a slowdown.
    """
    outlive_readers()
    try:
        status = app(standalone_mode=False)  # in which click would end with 1 for what it knows
    except Exception as error:  # noqa: BLE001 - a defect's traceback is all there is to tell
        status = ExitStatus.INTERRUPTED
        if not isinstance(error.__cause__, KeyboardInterrupt):  # click's way, in some versions
            traceback.print_exc()
            sys.stderr.write(clash_of_names())  # it may be why
            status = ExitStatus.DEFECT
    sys.exit(status)
