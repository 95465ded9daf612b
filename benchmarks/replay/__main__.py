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
from multiprocessing import get_context

from benchmarks.record import save
from benchmarks.replay.scoring import SLOW_WAYS, WAYS, scored, summary
from benchmarks.replay.tables import FOLDER, read
from benchmarks.replay.world import World


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


if __name__ == "__main__":
    main()
