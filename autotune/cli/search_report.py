"""The end of a search on stdout: verdict, why, next. On a terminal, the verdict stands in a box."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from autotune.cli.console import results_console
from autotune.results.as_data import as_text
from autotune.results.result import SearchResult
from autotune.results.verdict import Verdict, verdict

WIDEST = 100  # columns of the box; longer lines are hard to read
INDENT = "  "


def show(result: SearchResult, output: Path, *, as_json: bool = False) -> None:
    """Print what a search found."""
    if as_json:
        sys.stdout.write(as_text(result, output))
        return
    found = verdict(result, output)
    out = results_console()
    out.print()
    why = tuple(_why(found))
    if out.is_terminal:
        inside = Group(*map(_folded, (*_verdict(found), Text(), *why)))
        width = min(out.width, WIDEST)
        out.print(Panel(inside, title="Verdict", border_style=str(found.tone), width=width))
    else:
        for part in (*_verdict(found), *why):
            out.print(part)
    # Outside of the box, where a command can be selected and no border stands in it; nor is it
    # wrapped, because a line break would be copied along
    if found.next:
        out.print(Text("Next:", style="bold"))
    for command in found.next:
        line = Text.assemble("  ", command.text, (f"  # {command.purpose}", "dim"))
        out.print(line, soft_wrap=True)
    for sentence in (*found.notes, found.cost):
        out.print(Text(sentence, style="dim"))


def _folded(part: RenderableType) -> RenderableType:
    """Return a part of the box whose further lines are indented as the first one is."""
    if not isinstance(part, Text) or not part.plain.startswith(INDENT):
        return part
    return Padding(part[len(INDENT) :], (0, 0, 0, len(INDENT)))


def _verdict(found: Verdict) -> Iterator[RenderableType]:
    yield Text.assemble((found.headline, f"bold {found.tone}"), " ", found.basis)
    yield from (Text(f"{INDENT}{sentence}") for sentence in found.more)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 2))
    for column in ("", *found.columns):
        table.add_column(column, justify="right" if column else "left")
    for row in found.figures:
        table.add_row(row.name, *row.cells(len(found.columns)))
    yield table


def _why(found: Verdict) -> Iterator[RenderableType]:
    if found.changes:
        yield Text("Changed, and what each change gives on top of the others:", style="bold")
        listed = [f"{change.knob}: {change.values}" for change in found.changes]
        width = max(map(len, listed))
        for text, change in zip(listed, found.changes, strict=True):
            yield Text(f"{INDENT}{text:<{width}}   {change.gain}".rstrip())
    if found.why:
        yield Text("Why:", style="bold")
        yield from (Text(f"{INDENT}{sentence}") for sentence in found.why)


def details(result: SearchResult) -> None:
    """Print what a search found, and what led to it."""
    show(result, result.own_file)


def trials(result: SearchResult) -> None:
    """Print all trials of a search as a table."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("trial", "speedup", "why", "ended"):
        table.add_column(column, overflow="fold")
    for trial in result.trials:
        speedup = "" if trial["speedup"] is None else f"{trial['speedup']:.2f}x"
        cells = (trial["trial"], speedup, trial["why"], trial["outcome"])
        table.add_row(*(Text(str(cell)) for cell in cells))
    results_console().print(table)
