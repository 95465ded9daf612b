"""TrackedResult: what an experiment tracker gets of a search, the same for every tracker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.program.config import KnobValue
from autotune.report import html
from autotune.report.page import machine
from autotune.results.result import SearchResult

# Before all names: an active run has params and metrics that the user has logged
PREFIX = "autotune/"
BEST, REPORT = "best.yaml", "report.html"
SIZES = ("host_bytes", "device_allocated_bytes", "device_reserved_bytes", "device_used_bytes")


@dataclass(frozen=True)
class TrackedResult:
    """A search's result in the terms that experiment trackers share.

    Attributes:
        search: Name of the search, for the name of a run that is started for it.
        params: The changed knobs, each as ``autotune/KNOB/before`` and ``autotune/KNOB/after``;
            empty if nothing is recommended.
        metrics: Speedup with the bounds of its 95 % interval, samples/s and peak memory before and
            after, and what the search cost. What is unknown is left out.
        tags: What the figures are about: the finding, the program, the machine.
        files: Texts of best.yaml and report.html by file name.
    """

    search: str
    params: Mapping[str, KnobValue]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    files: Mapping[str, str]


def tracked_result(result: SearchResult) -> TrackedResult:
    """Return what a tracker gets of a result; nothing is read from the search's folder."""
    return TrackedResult(
        search=result.run_dir.name,
        params={f"{PREFIX}{name}": value for name, value in _params(result)},
        metrics={f"{PREFIX}{name}": float(value) for name, value in _metrics(result)},
        tags={f"{PREFIX}{name}": text for name, text in _tags(result) if text},
        files={BEST: result.best_file().text(BEST), REPORT: html(result, Path(BEST))},
    )


def _params(result: SearchResult) -> Iterator[tuple[str, KnobValue]]:
    for knob, after in result.changes.items():
        yield f"{knob}/before", result.baseline[knob]
        yield f"{knob}/after", after


def _metrics(result: SearchResult) -> Iterator[tuple[str, float]]:
    yield "speedup", result.speedup.estimate
    yield "speedup_low", result.speedup.low
    yield "speedup_high", result.speedup.high
    for side, rate, memory in zip(
        ("before", "after"), result.throughput, result.memory, strict=True
    ):
        yield f"samples_per_s_{side}", rate.estimate
        for name in SIZES:
            if (size := getattr(memory, name)) is not None:
                yield f"{name}_{side}", size
    yield "trials", len(result.records)
    yield "search_s", result.seconds


def _tags(result: SearchResult) -> Iterator[tuple[str, str]]:
    yield "finding", str(result.finding)
    yield "reason", result.reason
    yield "objective", str(result.head.options.goal.objective)
    yield "bottleneck", result.bottleneck
    yield "program", str(result.head.program)
    yield "machine", machine(result)
    yield "search", result.run_dir.name
    yield "created", result.head.created
