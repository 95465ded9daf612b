"""The program keeps losses together with their autograd graphs."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.results.advice.base import GROWTH, Advice, Readings, size

MIN_KEPT = 4  # a graph or two stay until the next step replaces them
MIN_SHARE = 0.5  # of the watched steps


def kept_graphs(readings: Readings) -> Iterator[Advice]:
    """Say that graphs of past steps stay in memory."""
    found = readings.examination.kept_graphs
    if found is None or found.kept < MIN_KEPT or found.kept < MIN_SHARE * found.steps:
        return
    grown = readings.device_growth or readings.host_growth
    costs = f" Memory grows by {size(grown)} with each step." if grown else ""
    yield Advice(
        "kept graphs",
        "The program keeps losses of past steps with their autograd graphs, so memory grows.",
        f"After {found.steps} steps, the graphs of {found.kept} were still alive.{costs}",
        "Keep numbers instead: losses.append(loss.item()) or total += loss.detach().",
        where=found.where,
        explains=(GROWTH,),
    )
