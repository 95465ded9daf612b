"""Whole searches on recorded programs: how fast is what each way to choose configs recommends?

    python -m benchmarks.replay [TABLE ...] [--runs 20]

In virtual time on the scripted machine, with the true speeds of six small programs (``tables``).
Configs take turns in all ways; they differ in who says which config enters the race: autotune's own
chooser, or one of Optuna's samplers. Scored is the true speed as a share of the best config's with
the program's own batch: mean and 5th percentile over the searches, of the config that came out of
the race (``chosen``) and of the one that is recommended in the end (``recommended``), which is the
program as written where no claim could be made.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from multiprocessing import get_context
from statistics import fmean

from benchmarks.record import save
from benchmarks.replay.world import names, reached_in

WAYS = ("autotune", "tpe", "random")
BUDGETS_S = (60.0, 90.0, 180.0)
PROCESSES = 2


def main() -> None:
    """Run the benchmark and keep its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", default=names(), metavar="TABLE")
    parser.add_argument("--runs", type=int, default=20, help="searches of each kind")
    options = parser.parse_args()
    figures: dict[str, object] = {"runs": options.runs, "budgets_s": BUDGETS_S}
    shares: dict[tuple[str, float], list[tuple[float, float]]] = {}
    # Forked processes would share the sampler's random numbers
    with get_context("spawn").Pool(PROCESSES) as pool:
        for table in options.tables:
            keys = [(way, budget_s) for way in WAYS for budget_s in BUDGETS_S]
            tasks = [(table, *key, seed) for key in keys for seed in range(options.runs)]
            found = pool.starmap(reached_in, tasks, chunksize=4)
            each = {key: found[n * options.runs :][: options.runs] for n, key in enumerate(keys)}
            figures[table] = told(table, each)
            for key, of in each.items():
                shares.setdefault(key, []).extend(of)
    figures["all"] = told("all", shares)
    print(f"kept in {save('replay', figures)}")


def told(
    name: str, shares: dict[tuple[str, float], list[tuple[float, float]]]
) -> dict[str, dict[str, object]]:
    """Print and return figures by way and budget."""
    figures: dict[str, dict[str, object]] = {}
    for (way, budget_s), of in shares.items():
        chosen, recommended = zip(*of, strict=True)
        cell = {"chosen": _summary(chosen), "recommended": _summary(recommended)}
        figures.setdefault(way, {})[f"{budget_s:.0f} s"] = cell
        print(f"{name:14} {way:9} {budget_s:4.0f} s  {cell}", flush=True)
    return figures


def _summary(shares: Sequence[float]) -> list[float]:
    worst = sorted(shares)[int(0.05 * len(shares))]
    return [round(fmean(shares), 3), round(worst, 3)]


if __name__ == "__main__":
    main()
