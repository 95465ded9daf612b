"""How often whole searches claim what is not there, and how often their live intervals hold.

    python -m benchmarks.calibration [--searches 200] [--budget 180]

Runs searches in virtual time on the scripted machine of the tests, whose noise, drift and processes
do not follow the model of the search, and of which the true speeds are known: with equal configs,
with a gain of 5 % and with one of 30 %. A row tells how many searches claimed a gain, how often the
interval of a claim held the truth, how often those of the configs did, and the true speed of the
recommended config as a share of the best one that was measured.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

from autotune.knobs import registry
from autotune.results.record import latest
from autotune.results.result import Finding
from benchmarks.record import save
from tests.scripted import PilotScript, Script, begin

KNOBS = {
    "num_workers": (0, 1, 2),
    "num_threads": (1, 2),
    "precision": ("fp32", "bf16"),
    "batch_size": (64, 128),
}
QUIET: dict[str, Any] = {"noise": 0.03, "process_noise": 0.01, "ratio_noise": 0.01, "drift": 0.02}
USUAL: dict[str, Any] = {
    "noise": 0.05, "process_noise": 0.03, "ratio_noise": 0.02, "drift": 0.06, "drift_s": 5.0,
    "pilots": PilotScript(noise=0.05),
}  # fmt: skip
BUSY: dict[str, Any] = {
    "noise": 0.1, "process_noise": 0.05, "ratio_noise": 0.03, "drift": 0.15, "drift_s": 2.0,
    "pilots": PilotScript(noise=0.05),
}  # fmt: skip
# A config with workers that never rest has no pilots; one with other workers slows its own a little
SOME_PILOTS = PilotScript(noise=0.05, are_missing=lambda config: config["num_workers"] == 2)
SLOWED = PilotScript(noise=0.05, slowed=lambda config: 0.03 * (config["num_workers"] == 1))
FIVE_PCT = {"num_workers": {1: 1.05, 2: 0.9}, "precision": {"bf16": 0.8}}
THIRTY_PCT = {"num_workers": {1: 1.3, 2: 1.1}, "precision": {"bf16": 0.8}}
CASES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "equal configs, quiet": (QUIET, {}),
    "equal configs, usual": (USUAL, {}),
    "equal configs, busy": (BUSY, {}),
    "equal configs, processes 5 % apart": ({**USUAL, "ratio_noise": 0.05}, {}),
    "equal configs, some without pilots": ({**BUSY, "pilots": SOME_PILOTS}, {}),
    "equal configs, one slows its pilots": ({**BUSY, "pilots": SLOWED}, {}),
    "5 % on a quiet machine": (QUIET, FIVE_PCT),
    "30 % on a usual machine": (USUAL, THIRTY_PCT),
    "30 % on a busy machine": (BUSY, THIRTY_PCT),
}


@dataclass(frozen=True)
class Outcome:
    """What one search came to.

    Attributes:
        finding: What it said.
        holds: Whether the interval of its speedup held the truth.
        live: For each config but the baseline, whether its live interval held the truth.
        reached: True speed of what it recommended, as a share of the best config it measured.
        configs: How many configs it measured.
        seconds: Virtual time that it took.
    """

    finding: Finding
    holds: bool
    live: tuple[bool, ...]
    reached: float
    configs: int
    seconds: float


def main() -> None:
    """Run the benchmark and keep its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--searches", type=int, default=200)
    parser.add_argument("--budget", type=float, default=180.0)
    options = parser.parse_args()
    figures = {}
    # Forked processes would share the sampler's random numbers
    with get_context("spawn").Pool() as pool:
        for name in CASES:
            tasks = [(name, seed, options.budget) for seed in range(options.searches)]
            figures[name] = summary(pool.starmap(search, tasks, chunksize=4))
            print(name, figures[name], flush=True)
    print(f"kept in {save('calibration', {'budget_s': options.budget, **figures})}")


def search(name: str, seed: int, budget_s: float) -> Outcome:
    """Run one search in virtual time."""
    noises, factors = CASES[name]
    assert registry(), "the knobs are known before the search begins"
    script = Script(factors, **noises)
    with tempfile.TemporaryDirectory() as folder:
        result = begin(Path(folder), script, KNOBS, seed).go_on(budget_s)
    base = script.rate(result.baseline)
    truth = script.rate(result.best) / base
    measured = [r for r in latest(result.records) if r.speedup is not None]
    return Outcome(
        result.finding,
        result.speedup.low <= truth <= result.speedup.high,
        tuple(
            r.speedup.low <= script.rate(r.config) / base <= r.speedup.high
            for r in measured
            if r.speedup is not None and r.config != result.baseline
        ),
        truth / max(script.rate(r.config) / base for r in measured),
        len(measured),
        result.seconds,
    )


def summary(outcomes: list[Outcome]) -> dict[str, object]:
    """Return shares and means over searches."""
    claims = [o for o in outcomes if o.finding is Finding.FASTER]
    return {
        "searches": len(outcomes),
        "findings": dict(Counter(str(o.finding) for o in outcomes)),
        "share_faster": round(len(claims) / len(outcomes), 4),
        "claims_that_hold": round(fmean(o.holds for o in claims), 4) if claims else None,
        "live_intervals_that_hold": round(fmean(held for o in outcomes for held in o.live), 4),
        "reached_of_the_best_measured": round(fmean(o.reached for o in outcomes), 4),
        "configs": round(fmean(o.configs for o in outcomes), 1),
        "seconds": round(fmean(o.seconds for o in outcomes), 1),
    }


if __name__ == "__main__":
    main()
