"""What commands print on stdout, for people and for other programs: results, tables, JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO, cast

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from rich.table import Table

WHOLE = 10_000  # columns; more than any line has
PADDING = re.compile(r" +(?=\n)")


def results_console() -> Console:
    """Return the console for results on stdout.

    On a terminal, tables and sentences are folded at its width. Elsewhere each line stays whole,
    so that other programs can read it.
    """
    found = Console(highlight=False)
    if found.is_terminal:
        return found
    file = cast("TextIO", _WithoutPadding())
    return Console(highlight=False, soft_wrap=True, width=WHOLE, file=file)


class _WithoutPadding:
    """Standard output, whose lines end where their text does: tables pad their last column."""

    def __getattr__(self, name: str) -> Any:  # its encoding, and to flush it
        return getattr(sys.stdout, name)

    def write(self, text: str) -> int:
        return sys.stdout.write(PADDING.sub("", text))


def table(
    rows: Iterable[Sequence[object]],
    heads: Sequence[str] = (),
    *,
    margin: int = 2,
    whole: Sequence[int] = (0,),
    name_style: str = "",
) -> Table:
    """Return rows as a table, whose cells are folded on a narrow terminal.

    Args:
        heads: Of its columns; empty for none.
        margin: Columns before each cell.
        whole: Numbers of the columns whose cells stay on one line, because they are copied.
        name_style: Of the first column.
    """
    from rich.table import Table

    cells = [[Text(str(cell)) for cell in row] for row in rows]
    found = Table(box=None, show_header=bool(heads), pad_edge=False, padding=(0, 2, 0, margin))
    for number in range(max([len(heads), *map(len, cells)])):
        head = heads[number] if heads else ""
        style = "" if number else name_style
        found.add_column(head, overflow="fold", no_wrap=number in whole, style=style)
    for row in cells:
        found.add_row(*row)
    return found


def print_json(data: object) -> None:
    """Print data as JSON; what it does not know, such as a path, as text."""
    sys.stdout.write(f"{json.dumps(data, indent=1, default=str)}\n")
