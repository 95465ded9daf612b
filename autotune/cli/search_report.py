"""The end of a search on stdout: one screen of at most 15 lines and 80 columns, and what is behind.

The words are the same on a terminal and in a pipe; colours and the mark are a terminal's alone.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from rich.text import Text

from autotune.cli.stdout import results_console, table
from autotune.results.data.result import as_text
from autotune.results.details import choice
from autotune.results.details import details as details_of
from autotune.results.finding import Finding
from autotune.results.result import SearchResult
from autotune.results.verdict import ROOM, Change, Row, Verdict, listed, verdict
from autotune.results.wording import factor

COLUMNS, LINES = 80, 15
MOST_KINDS = 3  # rows about other kinds of machine
LABEL = 14  # columns of a label, between two margins
MARGIN = "  "
WHOLE = 1000  # columns; more than any config takes
MARKS = {
    Finding.FASTER: ("✓ ", "green"),
    Finding.NOTHING_FOUND: ("= ", "default"),
    Finding.AT_LIMIT: ("= ", "default"),
    Finding.TOO_NOISY: ("? ", "yellow"),
    Finding.UNCONFIRMED: ("? ", "yellow"),
    Finding.NOT_MEASURED: ("✗ ", "red"),
}


def show(result: SearchResult, output: Path, *, as_json: bool = False) -> None:
    """Print what a search found."""
    if as_json:
        sys.stdout.write(as_text(result, output))
        return
    found, out = verdict(result, output), results_console()
    mark, colour = MARKS[found.finding] if out.is_terminal else ("", "default")
    for part in folded(f"{mark}{found.headline}", COLUMNS):
        out.print(Text(part, style=f"bold {colour}"))
    for label, said in screen(found):
        text = Text(f"{MARGIN}{label:<{LABEL}}{MARGIN}{said}".rstrip())
        text.stylize("dim", 0, len(MARGIN) + max(LABEL, len(label)))
        # A line break would be copied along with a command
        out.print(text, soft_wrap=True)


def details(result: SearchResult) -> None:
    """Print the verdict and all that is known beyond it."""
    show(result, result.own_file)
    out = results_console()
    for section in details_of(result):
        out.print()
        out.print(Text(section.title, style="bold"))
        for sentence in section.sentences:
            if not out.is_terminal:
                out.print(Text(f"{MARGIN}{sentence}"), soft_wrap=True)
                continue
            for line in folded(sentence, out.width - len(MARGIN)):
                out.print(Text(f"{MARGIN}{line}"), soft_wrap=True)


def trials(result: SearchResult) -> None:
    """Print each config that was tried, with what it looked like in the search."""
    rows = []
    for number, record in enumerate(result.records):
        speed = f"about {factor(record.speedup)}" if record.speedup and number else ""
        outcome = str(record.outcome)
        if record.ending is not None:
            outcome += f": {record.ending.reason}"
        elif number:
            outcome = "recommended" if record.config == result.best else ""
        settings = listed(record.config, result.baseline, -WHOLE) or "as written"
        rows.append((number, speed, settings, outcome))
    out = results_console()
    out.print(table(rows, ("trial", "looked", "settings", "outcome"), margin=0))
    for sentence in choice(result):
        out.print(Text(sentence))


def screen(found: Verdict) -> list[tuple[str, str]]:
    """Return the lines below the headline, each a label and its text.

    Blank lines part the facts, the changes, other kinds of machine, and the rest, as far as there
    is room for them.
    """
    head = len([*folded(f"{MARGIN}{found.headline}", COLUMNS)])
    for most in (2, 1):
        changes = [*_changes(*found.few_changes)]
        parts = [[*_rows(found.facts, most)], changes, [*_rows(found.rest, most)]]
        room = LINES - head - sum(map(len, parts))
        if room >= bool(found.groups):
            break
    kinds = _kinds(found.groups, min(room, MOST_KINDS))
    parts, room = [part for part in (*parts[:2], kinds, parts[2]) if part], room - len(kinds)
    lines: list[tuple[str, str]] = []
    for number, part in enumerate(parts):
        if room >= len(parts) - number:
            lines.append(("", ""))
        lines += part
    return lines


def folded(text: str, columns: int) -> Iterator[str]:
    """Yield a sentence in lines of at most some columns; words that are longer stay whole."""
    yield from textwrap.wrap(text, columns, break_long_words=False, break_on_hyphens=False)


def _rows(rows: tuple[Row, ...], most: int) -> Iterator[tuple[str, str]]:
    for row in rows:
        first, *others = [row.text] if row.is_command else _fitted(row.text, most)
        yield row.label, first
        yield from (("", text) for text in others)


def _fitted(text: str, most: int) -> list[str]:
    """Return a row's text on a few lines; the details have what does not fit."""
    lines = [*folded(text, ROOM)]
    if len(lines) > most:
        rest = " ".join(lines[most - 1 :])
        lines[most - 1 :] = [textwrap.shorten(rest, ROOM, placeholder=" …")]
    return lines


def _kinds(groups: tuple[Row, ...], most: int) -> list[tuple[str, str]]:
    """Return as many rows about other kinds of machine as there is room for."""
    rows = [(row.label, row.text) for row in groups]
    if len(rows) <= most:
        return rows
    shown = rows[: max(0, most - 1)]
    more = f"+ {len(rows) - len(shown)} more: autotune show -v"
    return [*shown, ("" if shown else groups[0].label, more)] if most > 0 else []


def _changes(changes: tuple[Change, ...], more: int) -> Iterator[tuple[str, str]]:
    rows = [(one.values, one.gain, one.learning) for one in changes]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    # Where columns take more than there is room for, each row takes what it needs
    pads = widths if sum(widths) + 3 * 2 <= ROOM else [0] * 3
    for one, row in zip(changes, rows, strict=True):
        cells = (f"{cell:<{pad}}" for cell, pad in zip(row, pads, strict=True))
        yield one.setting, "   ".join(cells).rstrip()
    if more:
        yield "", f"+ {more} more: autotune show -v"
