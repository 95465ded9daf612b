"""Keeps what a benchmark found: one JSON file per run, with date, machine, versions and command."""

from __future__ import annotations

import datetime
import json
import math
import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

from autotune.machine import hardware
from autotune.measurement.interval import Interval

RESULTS = Path(__file__).parent / "results"


def save(name: str, figures: Mapping[str, Any], part: str = "", device: str = "cpu") -> Path:
    """Write the figures of a benchmark and return the file.

    Args:
        name: The benchmark.
        figures: What it found.
        part: Tells several runs of a day apart.
        device: What its programs trained on; a machine with GPUs may train on the CPU.
    """
    machine = hardware.detect()
    today = datetime.datetime.now(datetime.UTC)
    content = {
        "benchmark": name,
        "date": today.isoformat(timespec="seconds"),
        "command": " ".join(["python", "-m", f"benchmarks.{name}", *sys.argv[1:]]),
        "machine": {
            "cpu": machine.cpu_name,
            "cores": machine.cpu_quota,
            "gpus": [gpu.name for gpu in machine.gpus],
            "system": machine.system,
        },
        "versions": dict(machine.versions),
        "figures": figures,
    }
    part = f"-{part}" if part else ""
    path = RESULTS / f"{today:%Y-%m-%d}-{name}{part}-{device}.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def median_ratio(ratios: Sequence[float]) -> Interval:
    """Return the median with its 95 % interval by order statistics: exact, whatever the noise.

    The k-th smallest and k-th largest enclose the median unless fewer than k ratios lie on one side
    of it, which is binomial (W. J. Conover, Practical Nonparametric Statistics, 3.2).
    """
    ordered, count = sorted(ratios), len(ratios)
    below = accumulate(math.comb(count, k) / 2**count for k in range(count))
    k = sum(1 for p in below if p <= 0.025)
    return Interval(median(ordered), ordered[max(0, k - 1)], ordered[-max(1, k)])


def as_figures(interval: Interval) -> dict[str, float]:
    """Return an interval as it is kept."""
    return {name: round(value, 5) for name, value in vars(interval).items()}
