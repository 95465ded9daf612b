"""What a way to search reaches at some marks of time, and figures of many runs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from statistics import fmean

from benchmarks.replay.tables import FOLDER, read
from benchmarks.replay.ways import GP, Autotune, Clairvoyant, Greedy, Random, Sampled, Unpaced, Way
from benchmarks.replay.world import Run, World

MARKS_S = (15.0, 30.0, 60.0, 120.0)
SOONER_S, LATER_S = (5.0, 10.0, 20.0, 45.0, 90.0), (180.0, 240.0, 360.0, 480.0)
ENOUGH = 0.98
WAYS: Mapping[str, tuple[type[Way], bool]] = {
    "autotune": (Autotune, False),
    "autotune without pilots": (Unpaced, False),
    "tpe": (Sampled, False),
    "random": (Random, False),
    "greedy": (Greedy, False),
    "tpe, own processes": (Sampled, True),
    "random, own processes": (Random, True),
    "clairvoyant": (Clairvoyant, False),
}
SLOW_WAYS: Mapping[str, tuple[type[Way], bool]] = {"gp": (GP, False)}


def scored(table: str, way: str, seed: int) -> dict[str, float]:
    """Return what a way reached at each mark in one run, and its own seconds per proposal."""
    world = World(read(FOLDER / f"{table}.jsonl"))
    found: dict[str, float] = {}
    cls, owns_process = {**WAYS, **SLOW_WAYS}[way]
    spent_s, count = 0.0, 0
    # The last part of a budget is spent otherwise, so each mark is a search of its own
    for mark_s in _marks(cls):
        search = cls(Run(world, seed), mark_s, owns_process=owns_process)
        began_s = time.process_time()
        search.go_on(mark_s)
        spent_s += time.process_time() - began_s
        count += sum(len(rates) for rates in search.rates.values())
        found[f"{mark_s:.0f}"] = world.reached(search.recommend())
    return {**found, "ms": 1000 * spent_s / count}


def _marks(cls: type[Way]) -> tuple[float, ...]:
    """Return when a way is scored; ours, which takes long to compute, at no later mark."""
    later = () if issubclass(cls, Autotune) else LATER_S
    return tuple(sorted((*SOONER_S, *MARKS_S, *later)))


def summary(runs: list[dict[str, float]]) -> dict[str, object]:
    """Return means and 5th percentiles over the runs."""
    figures: dict[str, object] = {}
    means = {}
    for mark_s in sorted(float(mark) for mark in runs[0].keys() - {"ms"}):
        reached = sorted(run[f"{mark_s:.0f}"] for run in runs)
        means[mark_s] = fmean(reached)
        if mark_s in MARKS_S:
            worst = reached[int(0.05 * len(reached))]
            figures[f"at_{mark_s:.0f}_s"] = [round(means[mark_s], 3), round(worst, 3)]
    first = next((mark_s for mark_s, mean in means.items() if mean >= ENOUGH), math.inf)
    figures["seconds_to_98"] = first if math.isfinite(first) else None
    figures["ms_per_proposal"] = round(fmean(run["ms"] for run in runs), 1)
    return figures
