"""What every command has in common: its help of one line an option, and its complaints.

The help is short enough to be read: options in panels, each with the first sentence of what it
means; docs/reference has all of it. What is typed wrongly is refused in one line, as every other
request that cannot be carried out.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from autotune.cli.exit_status import ExitStatus
from autotune.cli.messages import Messages
from autotune.tuning.search_request import GONE

# What earlier versions had, and what to type now. A program's own options of these names stand
# after the program and are its own.
GONE_COMMANDS = {
    "dashboard": "optuna-dashboard sqlite:///.autotune/SEARCH/study.db",
    "env": "autotune doctor --report",
    "knobs": "autotune search --dry-run PROGRAM",
    "log": "autotune export --to mlflow (or wandb, tensorboard)",
    "measure": "autotune doctor PROGRAM",
    "report": "autotune show --html (or --md)",
    "runs": "autotune show --list",
}
GONE_OPTIONS = {
    **{f"--{name.replace('_', '-')}": typed for name, (typed, _) in GONE.items()},
    "--format": "--html or --md",
}
MAIN = "Options"  # heading of the options without a panel
TYPED = "autotune.typed"  # in a context's meta: the words after the command's name
NARROWEST, WIDEST = 60, 100  # columns; a help on 80 is what the tests look at
# Each version of typer brings its own copy of click, or takes the installed one
USAGE_ERROR: Any = typer.BadParameter.__base__


class _Told:
    """What a command and the command line as a whole have in common."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse the words; what is wrong with them is told in one line."""
        ctx.meta[TYPED] = tuple(args)  # of the command last, which is parsed last
        with usage_errors_told(ctx.command_path):
            return super().parse_args(ctx, args)  # type: ignore[misc]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        for line in help_lines(self, ctx):
            formatter.write(f"{line}\n")


class Command(_Told, TyperCommand):
    """A command whose help has one line an option."""


class Group(_Told, TyperGroup):
    """The command line as a whole: its commands in the order of use."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that was typed, or refuse it in one line."""
        if args[0] in GONE_COMMANDS:
            refuse(f"'autotune {args[0]}' is now: {GONE_COMMANDS[args[0]]}")
        with usage_errors_told(ctx.command_path):
            return super().resolve_command(ctx, args)

    def list_commands(self, _ctx: Any) -> list[str]:
        """Return the names in the order in which they were declared."""
        return [*self.commands]


@contextmanager
def usage_errors_told(command: str) -> Iterator[None]:
    """Tell what was typed wrongly in one line, with what to type where an earlier word is meant."""
    try:
        yield
    except USAGE_ERROR as error:
        option = getattr(error, "option_name", None)
        if option in GONE_OPTIONS:
            refuse(f"{option} is now {GONE_OPTIONS[option]}; '{command} --help' lists the options.")
        refuse(f"{error.format_message()} '{command} --help' lists what there is.")


def refuse(message: str) -> None:
    """Print why a command line is refused, and end."""
    Messages().error(message)
    raise typer.Exit(ExitStatus.REFUSED)


def help_lines(command: Any, ctx: Any) -> Iterator[str]:
    """Yield the lines of a command's help."""
    options = [p for p in command.get_params(ctx) if p.param_type_name == "option"]
    arguments = [p for p in command.get_params(ctx) if p.param_type_name == "argument"]
    subcommands = [one for one in getattr(command, "commands", {}).values() if not one.hidden]
    rest = ["COMMAND", "..."] if subcommands else [_placeholder(one) for one in arguments]
    yield " ".join(["Usage:", ctx.command_path, "[OPTIONS]", *filter(None, rest)])
    yield ""
    columns = _columns()
    for text in (command.help or "").split("\n\n"):
        yield from textwrap.wrap(" ".join(text.split()), columns)
    for one in arguments:
        if one.help:
            name = f"  {_placeholder(one).strip('[]')}  "
            yield from textwrap.wrap(name + one.help, columns, subsequent_indent=" " * len(name))
    yield from _table("Commands", [(one.name, one.help) for one in subcommands])
    panels: dict[str, list[tuple[str, str]]] = {MAIN: []}
    for one in options:
        if not one.hidden:
            rows = panels.setdefault(getattr(one, "rich_help_panel", None) or MAIN, [])
            rows.append((_typed(one), one.help))
    for panel, rows in panels.items():
        yield from _table(panel, rows)


def _table(heading: str, rows: list[tuple[str, str]]) -> Iterator[str]:
    """Yield a heading, and a line for each name with the first sentence of its meaning."""
    if not rows:
        return
    yield ""
    yield f"{heading}:"
    columns = _columns()
    width = max(len(name) for name, _ in rows)
    for name, meaning in rows:
        room = columns - width - 4
        text = first_sentence(meaning)
        clause = re.split(r"[,;:] ", text)[0]
        text = text if len(text) <= room else clause
        yield f"  {name:<{width}}  {text if len(text) <= room else f'{text[: room - 1]}…'}"


def _columns() -> int:
    return min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)


def first_sentence(text: str) -> str:
    """Return a text up to the end of its first sentence, without the period."""
    return " ".join(text.split()).partition(". ")[0].removesuffix(".")


def _typed(option: Any) -> str:
    """Return how an option is typed: ``-o, --output FILE``."""
    words = sorted(option.opts, key=len)
    return " ".join([", ".join(words), *([] if option.is_flag else [option.metavar or "TEXT"])])


def _placeholder(argument: Any) -> str:
    return f"[{argument.name.upper()}]" if argument.metavar is None else argument.metavar
