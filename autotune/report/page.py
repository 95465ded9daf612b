"""The report as one file: HTML that opens offline and runs no script, or Markdown."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from autotune.report import figures
from autotune.results.as_data import as_data
from autotune.results.details import details
from autotune.results.result import SearchResult
from autotune.results.verdict import verdict

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")  # what Markdown reads in a line


def html(result: SearchResult, output: Path) -> str:
    """Return the report as HTML; *output* is where best.yaml was written."""
    raw = json.dumps(as_data(result, output), separators=(",", ":"))
    # So that the figures cannot end the element that they stand in
    safe = raw.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")
    return (
        _templates(is_html=True)
        .get_template("page.html.jinja")
        .render(
            **_content(result, output),
            bars=figures.step_bars(result),
            ranges=[*figures.ranges(result)],
            failures=figures.failures(result),
            raw=Markup(safe),  # noqa: S704 - escaped just above
        )
    )


def markdown(result: SearchResult, output: Path) -> str:
    """Return the report as Markdown: the same sentences, without charts; see ``html()``."""
    template = _templates(is_html=False).get_template("page.md.jinja")
    return template.render(**_content(result, output))


def machine(result: SearchResult) -> str:
    """Return the machine and the versions that the figures belong to."""
    hardware = result.hardware
    gpus = ", ".join(gpu.name for gpu in hardware.gpus) or "no GPU"
    versions = ", ".join(f"{name} {number}" for name, number in hardware.versions.items())
    return f"{hardware.cpu_name}, {hardware.cpu_quota} cores, {gpus}; {versions}"


def _content(result: SearchResult, output: Path) -> dict[str, Any]:
    return {
        "program": str(result.head.program),
        "created": result.head.created,
        "machine": machine(result),
        "verdict": verdict(result, output),
        "details": details(result),
        "rows": figures.rows(result),
    }


@cache
def _templates(*, is_html: bool) -> Environment:
    found = Environment(
        loader=PackageLoader("autotune.report"),
        autoescape=is_html,  # noqa: S701 - Markdown; a filter escapes what the program says
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=not is_html,
    )
    # Text of the program on one line, with nothing that Markdown would read
    found.filters["line"] = lambda text: SPECIAL.sub(r"\\\1", " ".join(text.split()))
    return found
