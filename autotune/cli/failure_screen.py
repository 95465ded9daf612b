"""Failure screen: what a person reads where a program was not measured, in 15 lines at most.

What happened; the end of what the program said, with the frames of its own code; whether it fails
without autotune, too; what to do, and to type. Pure functions.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from autotune.errors import UnmeasuredError
from autotune.measurement.outcome import LIBRARIES

WIDTH, MOST_LINES = 80, 15
MOST_SAID, LEAST_SAID = 10, 3  # lines of what the program said
LABEL = 18  # columns of a row's label
NAMED = len("autotune: ")  # what the first line begins with
FRAME = re.compile(r'\s*File "([^"]+)", line \d+')
MARKS = re.compile(r"[\s~^]*")


def lines_of(error: UnmeasuredError) -> list[str]:
    """Return the lines of the screen; a command to copy is one line, however long."""
    head = textwrap.wrap(printable(error.headline), WIDTH, initial_indent=" " * NAMED)
    rows = [*_rows(error)]
    room = MOST_LINES - len(head) - len(rows) - 2
    said = last_lines(error.program_traceback, min(MOST_SAID, max(LEAST_SAID, room)))
    shown = [_cut(f"  {line}") for line in said]
    parts = [[head[0][NAMED:], *head[1:]], shown, rows]
    return [line for n, part in enumerate(filter(None, parts)) for line in ["", *part][not n :]]


def _rows(error: UnmeasuredError) -> Iterator[str]:
    if error.alone:
        yield from _row("without autotune", error.alone)
    if error.mend:
        yield from _row("next", error.mend)
    if error.command:
        label = "" if error.mend else "next"
        yield f"  {label:<{LABEL}}{printable(error.command)}"


def _row(label: str, text: str) -> list[str]:
    first, rest = f"  {label:<{LABEL}}", " " * (2 + LABEL)
    return textwrap.wrap(
        printable(text), WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False
    )


def last_lines(text: str, most: int) -> list[str]:
    """Return the last lines of what a program said; of a traceback, the program's own frames.

    The frames of installed packages are left out as long as there are others.
    """
    lines = [line.rstrip() for line in printable(text).splitlines() if not MARKS.fullmatch(line)]
    frames: list[list[str]] = []
    after: list[str] = []
    for line in lines:
        if FRAME.match(line):
            frames.append([line])
            after = []
        elif frames and not after and line.startswith(" "):
            frames[-1].append(line)
        else:
            after.append(line)
    if not frames:
        return lines[-most:]
    after = after[-max(1, most // 3) :]
    own = [frame for frame in frames if not LIBRARIES.search(_path(frame[0]))] or frames
    kept: list[str] = []
    for frame in reversed(own):
        if len(kept) + len(frame) + len(after) > most:
            break
        kept = [*frame, *kept]
    return [*kept, *after]


def _path(line: str) -> str:
    found = FRAME.match(line)
    return found[1] if found else ""


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


def printable(text: str) -> str:
    """Return text without control characters: it may quote a file of somebody else's."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
