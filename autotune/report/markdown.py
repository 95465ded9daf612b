"""The report as Markdown, for a pull request or an issue: the same sentences, without charts."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from autotune.report import figures
from autotune.report.page import machine, refused
from autotune.report.worth import Training, sentences
from autotune.results.result import SearchResult
from autotune.results.verdict import verdict

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def markdown(result: SearchResult, output: Path, training: Training = Training()) -> str:  # noqa: B008
    """Return the report as Markdown.

    Args:
        result: What the search found.
        output: Where best.yaml was written, for the commands to type.
        training: What the user says of the training.
    """
    return (
        _templates()
        .get_template("page.md.jinja")
        .render(
            program=str(result.head.program).replace("`", "'"),
            machine=_line(machine(result)),
            verdict=verdict(result, output),
            worth=sentences(result, training),
            refused=refused(result),
            rows=figures.rows(result),
        )
    )


def _line(text: str) -> str:
    """Return text of the program on one line, with nothing that Markdown would read."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))


@cache
def _templates() -> Environment:
    found = Environment(
        loader=PackageLoader("autotune.report"),
        autoescape=False,  # noqa: S701 - Markdown; the filters escape what the program says
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters |= {"cell": _line, "line": _line}
    return found
