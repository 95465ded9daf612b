"""The report as one file: HTML that opens offline and runs no script, or Markdown.

The order is that in which a reader doubts: what came out, the proof, what changes, how to write
that into the program, how to repeat it; then everything else. Refused: charts that need a script,
and labels within them. A chart is drawn in percent of its width, with its words beside it in the
flow of the page, so that no size of screen or font makes them meet.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from autotune.exports.by_hand import by_hand
from autotune.report import charts
from autotune.report.repeat import repeat
from autotune.results.details import details
from autotune.results.finding import Finding
from autotune.results.result import SearchResult
from autotune.results.verdict import verdict
from autotune.results.wording import factor, machine, number, times

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")  # what Markdown reads in a line
TONES = {  # of the headline; a class of the style sheet
    Finding.FASTER: "good",
    Finding.NOTHING_FOUND: "plain",
    Finding.AT_LIMIT: "plain",
    Finding.TOO_NOISY: "open",
    Finding.UNCONFIRMED: "open",
    Finding.NOT_MEASURED: "bad",
}
# Of what is known beside the verdict: the parts that stand within other sections of the page
DOUBTS, LEARNING, SCRIPT = "Doubts", "Learning", "In the script instead"
MACHINES = "Machines"
ELSEWHERE = {
    *("The proof", MACHINES, "What each change gives on top of the others", "Failed"),
    *(DOUBTS, LEARNING, SCRIPT),
}


def html(result: SearchResult, output: Path) -> str:
    """Return the report as HTML; *output* is where best.yaml was written."""
    return _templates(is_html=True).get_template("page.html.jinja").render(_content(result, output))


def markdown(result: SearchResult, output: Path) -> str:
    """Return the report as Markdown, for a pull request; charts are text. See ``html()``."""
    return _templates(is_html=False).get_template("page.md.jinja").render(_content(result, output))


def _content(result: SearchResult, output: Path) -> dict[str, Any]:
    said = verdict(result, output)
    changes = charts.changed(result, said.changes)
    sections = details(result)
    sentences = {one.title: one.sentences for one in sections}
    return {
        "program": str(result.head.program),
        "created": result.head.created[:16].replace("T", " "),
        "machine": machine(result.hardware).partition("; ")[0],
        "verdict": said,
        "tone": TONES[said.finding],
        "proofs": charts.proofs(result),
        "machines": sentences.get(MACHINES, ()),
        "changes": changes,
        "gain_scale": charts.gain_scale(changes),
        "by_hand": by_hand(result) if result.changes else None,
        "repeat": [*repeat(result)],
        "bars": charts.step_bars(result),
        "bounds": charts.bounds_of(result.limit),
        "doubts": sentences.get(DOUBTS, ()),
        "learning": sentences.get(LEARNING, ()),
        "script": sentences.get(SCRIPT, ()),
        "details": [one for one in sections if one.title not in ELSEWHERE],
        "failures": charts.failures(result),
        "rows": charts.rows(result),
        "rows_left_out": max(0, len(result.records) - charts.MOST_ROWS),
    }


@cache
def _templates(*, is_html: bool) -> Environment:
    found = Environment(
        loader=PackageLoader("autotune.report"),
        autoescape=is_html,  # noqa: S701 - Markdown; filters escape what the program says
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=not is_html,
    )
    filters: dict[str, Callable[..., str]] = {
        # Text of the program on one line, with nothing that Markdown would read
        "line": lambda text: SPECIAL.sub(r"\\\1", " ".join(str(text).split())),
        "code": _code,
        "fenced": _fenced,
        "times": times,
        "factor": factor,
        "number": number,
        "level": charts.level,
        "pct": "{:.2f}%".format,
    }
    found.filters |= filters
    return found


def _code(text: str) -> str:
    """Return code within a line of Markdown; its marks are longer than any that it holds."""
    line = " ".join(text.split())
    mark = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    room = " " if "`" in line else ""
    # A bar would end a cell of a table, even within code
    return f"{mark}{room}{line}{room}{mark}".replace("|", "\\|")


def _fenced(text: str, language: str = "") -> str:
    """Return a block of code of Markdown."""
    mark = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{mark}{language}\n{text.rstrip()}\n{mark}"
