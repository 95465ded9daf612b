"""The command line ``autotune``: its commands by name.

autotune's own options come before the program; everything after the program's name belongs to the
program.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import Annotated

import typer

from autotune import __version__
from autotune.cli import compare, examine, past_runs, search, train
from autotune.cli.messages import outlive_readers
from autotune.cli.options import PROGRAM_LAST, with_declared_options

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Find the fastest safe configuration for a PyTorch training program, with proof.",
    pretty_exceptions_enable=False,
)


def skill() -> None:
    """Print instructions for coding agents: procedure, JSON keys, exit codes, what never to do."""
    text = files("autotune.cli").joinpath("SKILL.md").read_text(encoding="utf-8")
    typer.echo(text, nl=False)


COMMANDS: tuple[Callable[..., None], ...] = (
    *(search.search, train.run, search.resume, compare.compare, examine.doctor),
    *(past_runs.show, past_runs.export, past_runs.report, past_runs.runs, examine.knobs),
    skill,
)
for function in COMMANDS:
    has_program = "program" in function.__annotations__
    app.command(context_settings=PROGRAM_LAST if has_program else None)(
        with_declared_options(function)
    )


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        typer.echo(f"autotune {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; the entry point of the command ``autotune``."""
    outlive_readers()
    app()
