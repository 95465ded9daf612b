"""Writes docs/commands.md, and the arguments in docs/api.md: ``python -m tests.docs.reference``.

The pages are committed, so that they can be read without building the site. ``test_site.py``
compares them with what this makes of the commands and of ``SearchRequest``.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from autotune.cli.app import app
from autotune.tuning.search_request import SearchRequest, described

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
API = PAGE.with_name("api.md")
ARGUMENTS = "| argument | meaning |\n|---|---|\n"
INTRO = """\
# Commands

You find here every command and option of autotune. `autotune COMMAND --help` prints the same.

autotune's own options come before the program. `LINE` is what you want to train: `train.py`, or
your usual [command line](command-lines.md). Options and defaults below are read from the program;
`python -m tests.docs.reference` writes this page.
"""


def markdown() -> str:
    group: Any = typer.main.get_command(app)
    commands = {name: one for name, one in group.commands.items() if not one.hidden}
    return "\n".join([INTRO, *(_section(name, one) for name, one in commands.items())])


def api_page(page: str) -> str:
    """Return the page about the Python API with the arguments of ``search()`` as they are."""
    rows = "".join(
        f"| `{name}` | {_cell(one.help)} |\n" for name, one in described(SearchRequest).items()
    )
    before, after = re.split(re.escape(ARGUMENTS) + r"(?:\|.*\n)*", page)
    return f"{before}{ARGUMENTS}{rows}{after}"


def _section(name: str, command: Any) -> str:
    lines = [f"## autotune {name}", "", command.help or "", "", "| option | meaning |", "|---|---|"]
    return "\n".join([*lines, *_rows(command), ""])


def _rows(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if parameter.name == "help" or getattr(parameter, "hidden", False):
            continue
        is_argument = parameter.param_type_name == "argument"
        words = (parameter.metavar or parameter.name.upper(),) if is_argument else parameter.opts
        typed = ", ".join(f"`{word}`" for word in words)
        yield f"| {typed} | {_cell(parameter.help or '')}{_default(parameter)} |"


def _default(parameter: Any) -> str:
    """Return what is taken where the option is not typed; empty where that goes without saying."""
    value = parameter.default
    if (
        value in {None, False, "", ()}
        or callable(value)
        or not getattr(parameter, "show_default", True)
    ):
        return ""
    return f" Default: `{value}`."


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
    API.write_text(api_page(API.read_text(encoding="utf-8")), encoding="utf-8")
