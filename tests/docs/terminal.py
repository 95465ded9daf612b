"""What a command shows on a terminal of 80 x 24, as it goes by; and that as an animated SVG.

A pseudo-terminal keeps the bytes with their times, pyte plays them on a screen. The picture has no
script: each row of the screen is visible for as long as it stood there, by a CSS animation. Who
asks for less motion sees the last screen.
"""

import fcntl
import os
import pty
import struct
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree

import pyte

COLUMNS, ROWS = 80, 24
SHOWN_S, LAST_S = 20.0, 6.0  # a longer recording goes by in this time; then the last screen stays
FRAMES = 60  # the screen is looked at so often: more would make the picture large
# In pixels: a character of a monospaced font of 14 px, as terminals space it
WIDTH, HEIGHT, MARGIN = 8.4, 18, 14
COLOURS = {
    "default": "#d8dee9", "black": "#7b8494", "red": "#e5727d", "green": "#98c379",
    "brown": "#e5c07b", "blue": "#61afef", "magenta": "#c678dd", "cyan": "#56b6c2",
    "white": "#ffffff",
}  # fmt: skip

Bytes = tuple[float, bytes]


@dataclass(frozen=True)
class Span:
    """Neighbouring characters of one look."""

    column: int
    text: str
    colour: str
    is_bold: bool


Row = tuple[Span, ...]
Screen = tuple[Row, ...]


def record(argv: Sequence[str]) -> tuple[list[Bytes], int]:
    """Run a command in a terminal of its own; return what it printed, by seconds, and its status.

    What it prints is shown here as well.
    """
    child, terminal = pty.fork()
    if child == 0:
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": ""}
        for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
            environment.pop(name, None)
        time.sleep(0.2)  # until the size is set
        os.execvpe(argv[0], list(argv), environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    start_s, printed = time.monotonic(), list[Bytes]()
    while some := _read(terminal):
        printed.append((time.monotonic() - start_s, some))
        os.write(1, some)
    os.close(terminal)
    return printed, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux's way to say that the other end is closed
        return b""


def screens(line: str, printed: Sequence[Bytes]) -> list[tuple[float, Screen]]:
    """Return the distinct screens of a recorded command with the seconds at which each came up."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    stream.feed(f"$ {line}\r\n".encode())
    found = [(0.0, _look(screen))]
    frame_s = max(printed[-1][0], 1e-3) / FRAMES
    for frame, several in groupby(printed, lambda one: int(one[0] / frame_s)):
        for _, some in several:
            stream.feed(some)
        if (now := _look(screen)) != found[-1][1]:
            found.append((frame * frame_s, now))
    return found


def _look(screen: pyte.Screen) -> Screen:
    return tuple(_row(screen.buffer[row]) for row in range(ROWS))


def _row(characters: "dict[int, pyte.screens.Char]") -> Row:
    spans, column = list[Span](), 0
    looks = ((one.fg, one.bold) for one in (characters[at] for at in range(COLUMNS)))
    for (colour, is_bold), several in groupby(looks):
        end = column + len(list(several))
        text = "".join(characters[at].data for at in range(column, end))
        if text.strip():
            spans.append(Span(column, text.rstrip(), colour, is_bold))
        column = end
    return tuple(spans)


def text_of(screen: Screen) -> list[str]:
    """Return the rows of a screen as text, without blanks at their ends."""
    rows = []
    for row in screen:
        text = ""
        for span in row:
            text = text.ljust(span.column) + span.text
        rows.append(text)
    return rows


def svg(title: str, shown: Sequence[tuple[float, Screen]]) -> str:
    """Return the screens as an animated picture, whose description is *title*."""
    pace = min(1.0, SHOWN_S / max(shown[-1][0], 1e-3))
    times = [at * pace for at, _ in shown]
    length_s = times[-1] + LAST_S
    styles, rows = list[str](), list[str]()
    for number, (row, line, begins, ends) in enumerate(_stays([one for _, one in shown])):
        starts_s = times[begins]
        stops_s = length_s if ends is None else times[ends]
        is_last = ends is None
        if starts_s > 0 or not is_last:
            styles.append(_keyframes(number, starts_s / length_s, stops_s / length_s, is_last))
        rows.append(_painted(row, line, number, is_last=is_last))
    return "\n".join([*_head(title, length_s, styles), *rows, "</svg>", ""])


def _stays(shown: Sequence[Screen]) -> Iterator[tuple[int, Row, int, int | None]]:
    """Yield row, content, first screen and the first one without it; None is none."""
    for row in range(ROWS):
        begins = 0
        for ends in range(1, len(shown) + 1):
            is_over = ends == len(shown)
            line = shown[begins][row]
            if is_over or shown[ends][row] != line:
                if line:
                    yield row, line, begins, None if is_over else ends
                begins = ends


def _keyframes(number: int, starts: float, stops: float, is_last: bool) -> str:
    steps = ["0%{visibility:hidden}"] if starts > 0 else []
    steps.append(f"{100 * starts:.2f}%{{visibility:visible}}")
    if not is_last:
        steps.append(f"{100 * stops:.2f}%{{visibility:hidden}}")
    return f"@keyframes k{number}{{{''.join(steps)}}} #r{number}{{animation-name:k{number}}}"


def _painted(row: int, line: Row, number: int, *, is_last: bool) -> str:
    spans = "".join(
        f'<tspan x="{MARGIN + span.column * WIDTH:.1f}" textLength="{len(span.text) * WIDTH:.1f}"'
        f"{_look_of(span)}>{escape(span.text)}</tspan>"
        for span in line
    )
    last = ' class="last"' if is_last else ""
    return f'<text id="r{number}"{last} y="{MARGIN + (row + 1) * HEIGHT - 4}">{spans}</text>'


def _look_of(span: Span) -> str:
    colour = span.colour.removeprefix("bright")
    fill = COLOURS.get(colour) or f"#{colour}"
    return ("" if fill == COLOURS["default"] else f' fill="{fill}"') + (
        ' font-weight="bold"' if span.is_bold else ""
    )


def _head(title: str, length_s: float, styles: Sequence[str]) -> list[str]:
    width, height = round(2 * MARGIN + COLUMNS * WIDTH), 2 * MARGIN + ROWS * HEIGHT
    font = f"font:14px monospace;white-space:pre;fill:{COLOURS['default']}"
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        "<style>",
        f"text{{{font};visibility:hidden;animation:none {length_s:.2f}s step-end infinite}}",
        ".last{visibility:visible}",
        *styles,
        "@media(prefers-reduced-motion:reduce){text{animation:none!important}}",
        "</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#1f2430"/>',
    ]


def last_screen(picture: Path) -> list[str]:
    """Return the last screen of a picture that ``svg`` made, as text."""
    rows = [""] * ROWS
    for text in ElementTree.parse(picture).getroot():
        if text.get("class") == "last":
            row = round((float(text.get("y", "")) + 4 - MARGIN) / HEIGHT) - 1
            for span in text:
                column = round((float(span.get("x", "")) - MARGIN) / WIDTH)
                rows[row] = rows[row].ljust(column) + (span.text or "")
    return rows


def title_of(picture: Path) -> str:
    return ElementTree.parse(picture).getroot()[0].text or ""
