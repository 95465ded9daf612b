"""Replay searches on recorded programs: how fast is what each way recommends, and when.

    python -m benchmarks.replay [TABLE ...] [--runs 50]

Every way to search runs on every table, from moments of the recording drawn at random. Scored is
the true speed of the config that it recommends after 15, 30, 60 and 120 s of trials, as a share of
the best config's: mean and 5th percentile over the runs. ``seconds_to_98`` is when the mean first
reaches 98 %; infinite if never within 480 s. ``own`` measures each config in a process of its own,
as a script with Optuna does without a rig.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping
from multiprocessing import get_context
from statistics import fmean

from benchmarks.record import save
from benchmarks.replay.tables import FOLDER, read
from benchmarks.replay.ways import GP, Autotune, Clairvoyant, Greedy, Random, Sampled, Unpaced, Way
from benchmarks.replay.world import Run, World

MARKS_S = (15.0, 30.0, 60.0, 120.0)
LATER_S = (180.0, 240.0, 360.0, 480.0)  # for those that take longer
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


def main() -> None:
    """Run the benchmark and keep its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    recorded = sorted(path.stem for path in FOLDER.glob("*.jsonl"))
    parser.add_argument("tables", nargs="*", default=recorded)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--gp", action="store_true", help="Optuna's GP as well, which is slow")
    options = parser.parse_args()
    ways = {**WAYS, **(SLOW_WAYS if options.gp else {})}
    figures: dict[str, object] = {}
    with get_context("spawn").Pool() as pool:
        for table in options.tables:
            tasks = [(table, way, seed) for way in ways for seed in range(options.runs)]
            results = pool.starmap(scored, tasks, chunksize=5)
            by_way = {
                way: [r for task, r in zip(tasks, results, strict=True) if task[1] == way]
                for way in ways
            }
            figures[table] = {
                "configs": len(World(read(FOLDER / f"{table}.jsonl")).truth),
                **{way: summary(of) for way, of in by_way.items()},
            }
            print(table)
            for way in ways:
                print(f"  {way:26}", figures[table][way], flush=True)  # type: ignore[index]
    print(f"kept in {save('replay', {'runs': options.runs, **figures})}")


def scored(table: str, way: str, seed: int) -> dict[str, float]:
    """Return what a way reached at each mark in one run, and its own seconds per proposal."""
    world = World(read(FOLDER / f"{table}.jsonl"))
    found: dict[str, float] = {}
    cls, owns_process = {**WAYS, **SLOW_WAYS}[way]
    spent_s, count = 0.0, 0
    # The last part of a budget is spent otherwise, so each mark is a search of its own
    for mark_s in (*MARKS_S, *LATER_S):
        search = cls(Run(world, seed), mark_s, owns_process=owns_process)
        began_s = time.process_time()
        search.go_on(mark_s)
        spent_s += time.process_time() - began_s
        count += sum(len(rates) for rates in search.rates.values())
        found[f"{mark_s:.0f}"] = world.reached(search.recommend())
    return {**found, "ms": 1000 * spent_s / count}


def summary(runs: list[dict[str, float]]) -> dict[str, object]:
    """Return means and 5th percentiles over the runs."""
    figures: dict[str, object] = {}
    means = {}
    for mark_s in (*MARKS_S, *LATER_S):
        reached = sorted(run[f"{mark_s:.0f}"] for run in runs)
        means[mark_s] = fmean(reached)
        if mark_s in MARKS_S:
            worst = reached[int(0.05 * len(reached))]
            figures[f"at_{mark_s:.0f}_s"] = [round(means[mark_s], 3), round(worst, 3)]
    first = next((mark_s for mark_s, mean in means.items() if mean >= ENOUGH), math.inf)
    figures["seconds_to_98"] = first if math.isfinite(first) else None
    figures["ms_per_proposal"] = round(fmean(run["ms"] for run in runs), 1)
    return figures


if __name__ == "__main__":
    main()
