"""The report as one HTML file: it opens offline, and needs no script to be read or printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from autotune.report import charts, figures
from autotune.report.svg import Drawing
from autotune.report.worth import Training, sentences
from autotune.results.as_data import as_data
from autotune.results.result import SearchResult
from autotune.results.verdict import verdict

MIN_FOR_PROGRESS = 3  # trials from which their course is worth a drawing


@dataclass(frozen=True)
class Chart:
    """A drawing with its caption."""

    title: str
    caption: str
    drawing: Drawing


def html(result: SearchResult, output: Path, training: Training = Training()) -> str:  # noqa: B008
    """Return the report as HTML.

    Args:
        result: What the search found.
        output: Where best.yaml was written, for the commands to type.
        training: What the user says of the training.
    """
    return templates().get_template("page.html.jinja").render(content(result, output, training))


def content(
    result: SearchResult,
    output: Path,
    training: Training = Training(),  # noqa: B008
) -> dict[str, Any]:
    """Return what the template of a report shows, by its names there; for arguments see html()."""
    return {
        "program": str(result.head.program),
        "created": result.head.created,
        "machine": machine(result),
        "verdict": verdict(result, output),
        "worth": sentences(result, training),
        "charts": [*_charts(result)],
        "refused": refused(result),
        "failures": figures.failures(result),
        "rows": figures.rows(result),
        "raw": _embedded(result),
    }


def refused(result: SearchResult) -> dict[str, list[str]]:
    """Return the reasons why knobs were not searched, each with these knobs."""
    found: dict[str, list[str]] = {}
    for knob, reason in result.refused.items():
        found.setdefault(reason, []).append(knob)
    return found


def machine(result: SearchResult) -> str:
    """Return the machine and the versions that the figures belong to."""
    hardware = result.hardware
    gpus = ", ".join(gpu.name for gpu in hardware.gpus) or "no GPU"
    versions = ", ".join(f"{name} {number}" for name, number in hardware.versions.items())
    return f"{hardware.cpu_name}, {hardware.cpu_quota} cores, {gpus}; {versions}"


def _charts(result: SearchResult) -> Iterator[Chart]:
    if (steps := figures.steps(result)) is not None:
        yield Chart(
            "Where a step's time goes",
            f"Milliseconds for {steps.samples:,.0f} samples, the step as written. The parts were "
            "profiled as written; of the best config only its waiting for data is known.",
            charts.step_bars(steps),
        )
    speedup = result.candidate_speedup
    if speedup is not None and (processes := figures.processes(result)):
        yield Chart(
            "The proof",
            f"Each dot is {figures.each_is(result)}. The band is the 95 % interval of the claim.",
            charts.proof(processes, speedup, figures.each_is(result)),
        )
    if speedup is not None and result.contributions:
        yield Chart(
            "What each change gives",
            "The config against itself without one change, by the turns of the search, on a scale "
            "of equal ratios.",
            charts.waterfall(result.contributions, speedup),
        )
    if len(result.records) >= MIN_FOR_PROGRESS:
        yield Chart(
            "How the search went",
            "The best speedup after each trial, by lower bounds. Red ticks are trials that failed.",
            charts.progress(figures.moments(result)),
        )
    if len(points := figures.points(result)) > 1:
        yield Chart(
            "Memory and speed",
            "Every config that was measured. The line joins those that no other one beats in both.",
            charts.memory_and_speed(points, figures.memory_limit_gib(result)),
        )


def _embedded(result: SearchResult) -> Markup:
    """Return the figures as JSON that cannot end the element it stands in."""
    raw = json.dumps(as_data(result), separators=(",", ":"), default=str)
    safe = raw.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")
    return Markup(safe)  # noqa: S704 - escaped just above


@cache
def templates() -> Environment:
    """Return the templates of HTML pages; they escape every text."""
    return Environment(
        loader=PackageLoader("autotune.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
