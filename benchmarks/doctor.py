"""Does ``autotune doctor`` tell a fault from its twin? Each fault is planted, and left out.

``python -m benchmarks.doctor --runs 10`` writes one row for each fault: how often the expected
advice was given to the program with the fault, and how often to its twin, which is alike in all
else. Other advice is counted as well: on the sound twin it is a false alarm.

The programs are those of ``tests/programs/faulty.py``. ``--jobs`` runs several at a time: advice
must not depend on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.processes import AUTOTUNE
from benchmarks.record import save

PROGRAM = Path(__file__).parents[1] / "tests" / "programs" / "faulty.py"
# By fault: the advice that names it
EXPECTED = {
    "python": "input-bound: computing",
    "disk": "input-bound: waiting",
    "sleep": "input-bound: waiting",
    "launch": "launch-bound",
    "padding": "padding",
    "shapes": "30 shapes",
    "kept_graphs": "memory growth",
    "growth": "memory growth",
    "bound": "affinity: training process",
    "bound_workers": "affinity: workers",
    "deterministic": "left on: deterministic_algorithms",
    "anomaly": "left on: anomaly_detection",
    "data_parallel": "DataParallel",
    "large_batch": "large batch",
    "ranks": "straggler",
}
RANKED = {"ranks"}


def main() -> None:
    """Run all faults and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("faults", nargs="*", default=list(EXPECTED))
    options = parser.parse_args()
    rows: dict[str, object] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        for fault in options.faults:
            rows[fault] = _row(fault, options.runs, pool)
            print(fault, rows[fault], flush=True)
    save("doctor", rows)


def _row(fault: str, runs: int, pool: ThreadPoolExecutor) -> dict[str, object]:
    """Return how often advice was given.

    Returns:
        ``runs`` of each program; ``found`` in the program with the fault and ``mistaken`` in its
        twin, in runs; ``others``: other advice to the twin, by run; ``failed``:
        runs without a result.
    """
    jobs = [(fault, flags) for _ in range(runs) for flags in ((), ("--sound",))]
    advice = [*pool.map(lambda job: _advice(*job), jobs)]
    planted, sound = ([names or [] for names in some] for some in (advice[::2], advice[1::2]))
    expected = EXPECTED[fault]
    return {
        "runs": runs,
        "found": sum(expected in names for names in planted),
        "mistaken": sum(expected in names for names in sound),
        "others": [name for names in sound for name in names if name != expected],
        "failed": advice.count(None),
    }


def _advice(fault: str, flags: Sequence[str]) -> list[str] | None:
    """Return the names of the advice on a program, and how many shapes its batches have.

    None if there was no result.
    """
    ranks = ["--nproc-per-node", "2"] if fault in RANKED else []
    command = [*AUTOTUNE, "doctor", "--quiet", "--json", *ranks, str(PROGRAM), fault, *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(fault, *flags, done.stderr[-500:], flush=True)
        return None
    found = json.loads(done.stdout)["program"]
    shapes = (found["breakdown"]["batches"] or {}).get("shapes", 1)
    counted = [f"{shapes} shapes"] if shapes > 1 else []
    return [*counted, *(advice["name"] for advice in found["advice"])]


if __name__ == "__main__":
    main()
