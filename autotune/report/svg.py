"""Drawings: SVG from points in the chart's own units, coloured by the classes of the page's CSS.

A drawing is 340 units wide, so its text can be read on a telephone without zooming.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

from markupsafe import Markup

WIDTH = 340
NICE = (1.0, 2.0, 2.5, 5.0, 10.0)  # a distance of ticks is one of these, times a power of ten


class Scale:
    """Maps values to positions, linearly or by their logarithms.

    Args:
        low: Smallest value.
        high: Largest value; it must be larger than *low*.
        start: Position of *low*.
        end: Position of *high*.
        is_log: Whether equal ratios have equal distances.
    """

    def __init__(
        self, low: float, high: float, start: float, end: float, *, is_log: bool = False
    ) -> None:
        self.low, self.high, self.is_log = low, high, is_log
        self._start, self._length = start, end - start

    def __call__(self, value: float) -> float:
        """Return the position of a value; one outside is moved to the nearer end."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self._start + self._length * share

    def ticks(self, count: int = 4) -> list[float]:
        """Return about *count* round values within the scale."""
        rough = (self.high - self.low) / count
        power = 10 ** math.floor(math.log10(rough))
        step = next(nice * power for nice in NICE if nice * power >= rough * 0.99)
        first = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(first, int(self.high / step + 1e-9) + 1)]


class Drawing:
    """An SVG image that grows by shapes.

    Args:
        height: In units.
        title: What the image shows, for people who cannot see it.
    """

    def __init__(self, height: float, title: str) -> None:
        self._height, self._title = height, title
        self._shapes: list[str] = []

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "axis") -> None:
        """Draw a straight line."""
        self._shapes.append(
            f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
        )

    def box(
        self, x: float, y: float, width: float, height: float, kind: str, tip: str = ""
    ) -> None:
        """Draw a filled rectangle; *tip* is shown when it is pointed at."""
        self._shapes.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" '
            f'height="{height:.1f}">{_tip(tip)}</rect>'
        )

    def dot(self, x: float, y: float, kind: str, tip: str = "", radius: float = 3.0) -> None:
        """Draw a filled circle."""
        self._shapes.append(
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}">{_tip(tip)}</circle>'
        )

    def path(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """Draw a line through points."""
        listed = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._shapes.append(f'<polyline class="{kind}" points="{listed}"/>')

    def text(
        self, x: float, y: float, text: str, kind: str = "label", anchor: str = "start"
    ) -> None:
        """Write a text; *anchor* is the part of it that stands at the position."""
        self._shapes.append(
            f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
            f"{escape(text)}</text>"
        )

    def horizontal_axis(self, scale: Scale, y: float, top: float, unit: str = "") -> None:
        """Draw ticks below *y*, and their lines from *top*."""
        for tick in scale.ticks():
            self.line(scale(tick), top, scale(tick), y, "grid")
            self.text(scale(tick), y + 12, f"{tick:g}{unit}", anchor="middle")

    def vertical_axis(self, scale: Scale, left: float, right: float, unit: str = "") -> None:
        """Draw ticks at the left, and their lines to the right."""
        for tick in scale.ticks():
            self.line(left, scale(tick), right, scale(tick), "grid")
            self.text(left - 4, scale(tick) + 3, f"{tick:g}{unit}", anchor="end")

    def __html__(self) -> str:
        """Return the SVG; jinja2 inserts it unescaped."""
        body = "".join(self._shapes)
        title = escape(self._title)
        return (
            f'<svg viewBox="0 0 {WIDTH} {self._height:g}" role="img" aria-label="{title}">'
            f"<title>{title}</title>{body}</svg>"
        )

    @property
    def markup(self) -> Markup:
        """The SVG as text that is safe to insert."""
        return Markup(self.__html__())  # noqa: S704 - every text in it is escaped


def stairs(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield the corners of a line that keeps its height until the next point."""
    yield from points[:1]
    for (_, y1), (x2, y2) in pairwise(points):
        yield x2, y1
        yield x2, y2


def _tip(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""
