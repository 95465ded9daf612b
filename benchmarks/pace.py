"""How much of the noise of visits and processes the pilots explain.

    python -m benchmarks.pace [PROGRAM] [--visits 40] [--processes 0] [--burn 0.0]

One program on one rig; visits of 1.5 s of the config as written and of one with another number of
threads or workers, in turn, with pilots before and after. The log of each visit's rate, within its
config, is predicted from the log pace by a line through the *other* visits; the spread of what is
left is compared with the raw spread. The same with shuffled pilots must gain nothing. ``--burn``
keeps a share of all cores busy meanwhile. Fresh processes give one visit each.
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from time import monotonic

import numpy as np

from autotune.knobs.space.spacefile import load
from autotune.machine import hardware
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import Ending
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.program.program import parse_program
from autotune.rig.rig import Rig
from autotune.rig.rig_factory import RigFactory
from autotune.rig.wire import WindowPlan
from autotune.tuning.start.first_start import START_SILENCE_S
from benchmarks.record import save

PROGRAM = Path(__file__).parents[1] / "examples" / "digits_cnn" / "train.py"
BURN = Path(__file__).parent / "programs" / "burn.py"
VISIT = WindowPlan(0.4, 4.0, 1.5, 1.5, half_width=0.0)
FIRST = WindowPlan(3.0, 10.0, 1.5, 1.5, half_width=0.0)
RIDGE = 0.05  # added to the sums of squares of the paces, in units of their own


@dataclass(frozen=True)
class Visit:
    """One visit: which config, how fast, and the machine's pace around it."""

    config: int
    log_rate: float
    one_core: float
    all_cores: float


def main() -> None:
    """Run the benchmark and keep its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", nargs="?", default=str(PROGRAM))
    parser.add_argument("--visits", type=int, default=40)
    parser.add_argument("--processes", type=int, default=0)
    parser.add_argument("--burn", type=float, default=0.0, help="share of each core")
    options = parser.parse_args()
    program, machine = parse_program(options.program, []), hardware.detect()
    with (
        tempfile.TemporaryDirectory() as folder,
        RigFactory(program, Path(folder), machine) as rigs,
        burning(options.burn, machine.cpu_quota),
    ):
        began = monotonic()
        visits = list(visited(rigs, options.visits))
        seconds = (monotonic() - began) / max(1, len(visits))
        figures = {
            "program": Path(options.program).parent.name,
            "burn": options.burn,
            "seconds_per_visit": round(seconds, 2),
            "visits": summary(visits),
        }
        if options.processes:
            figures["processes"] = summary([fresh(rigs) for _ in range(options.processes)])
    print(figures)
    print(f"kept in {save('pace', figures)}")


def visited(rigs: RigFactory, count: int) -> Iterator[Visit]:
    """Visit two configs in turn on one rig."""
    with rigs.new() as rig:
        base, configs = opened(rig, rigs)
        for number in range(count + 1):
            which = number % 2
            plan = VISIT if number else FIRST
            visit = one(rig, replace(base, config=configs[which]), plan, which)
            if number and visit is not None:  # the first may still be warming up
                yield visit


def fresh(rigs: RigFactory) -> Visit:
    """Start a process and visit the program as written in it."""
    with rigs.new() as rig:
        base, configs = opened(rig, rigs)
        visit = one(rig, replace(base, config=configs[0]), FIRST, 0)
        assert visit is not None, "no pilots could be taken"
        return visit


def opened(rig: Rig, rigs: RigFactory) -> tuple[AppliedConfig, tuple[Config, Config]]:
    """Open a rig; return the program as written and two configs."""
    ready = rig.open(None, _never, START_SILENCE_S)
    if isinstance(ready, Ending):
        raise SystemExit(f"the program failed: {ready.reason}")
    space = load("default").resolve(rigs.hardware, ready.profile)
    base = AppliedConfig.as_written(space.baseline, ready.profile, flags=space.flags)
    return base, (base.config, space.canonical(base.config.replace(num_threads=1)))


def one(rig: Rig, applied: AppliedConfig, plan: WindowPlan, which: int) -> Visit | None:
    """Visit a config; None if the pilots could not be taken."""
    found = rig.measure(applied, plan, _never, START_SILENCE_S)
    if not isinstance(found, Measurement):
        raise SystemExit(f"the program failed: {found.reason}")
    if found.pace is None:
        return None
    samples, seconds = (
        sum(b.samples for b in found.blocks),
        sum(b.seconds for b in found.blocks),
    )
    return Visit(which, math.log(samples / seconds), found.pace.one_core, found.pace.all_cores)


def summary(visits: Sequence[Visit]) -> dict[str, object]:
    """Return spreads in percent: raw, and of left-out visits by each pilot, both, shuffled."""
    rates, paces = centred(visits)
    if len(visits) < 6:
        return {"count": len(visits), "note": "too few"}
    rng = random.Random(0)
    shuffled = [left_out(rates, rng.sample(paces, len(paces))) for _ in range(20)]
    raw = stdev(rates)
    return {
        "count": len(visits),
        "raw_pct": round(100 * raw, 2),
        "one_core_pct": round(100 * left_out(rates, [(a,) for a, _ in paces]), 2),
        "all_cores_pct": round(100 * left_out(rates, [(b,) for _, b in paces]), 2),
        "both_pct": round(100 * left_out(rates, paces), 2),
        "shuffled_pct": round(100 * fmean(shuffled), 2),
        "coefficients": [round(float(b), 2) for b in coefficients(rates, paces)],
        "spread_of_paces_pct": [round(100 * stdev(p), 2) for p in zip(*paces, strict=True)],
    }


def centred(visits: Sequence[Visit]) -> tuple[list[float], list[tuple[float, float]]]:
    """Return log rates and log paces, each less its mean within the config."""
    rates, paces = [], []
    for visit in visits:
        mates = [v for v in visits if v.config == visit.config]
        rates.append(visit.log_rate - fmean(v.log_rate for v in mates))
        paces.append(
            (
                visit.one_core - fmean(v.one_core for v in mates),
                visit.all_cores - fmean(v.all_cores for v in mates),
            )
        )
    return rates, paces


def left_out(rates: Sequence[float], paces: Sequence[tuple[float, ...]]) -> float:
    """Return the spread of what a line through the other visits leaves of each visit."""
    left = []
    for number, rate in enumerate(rates):
        others = [n for n in range(len(rates)) if n != number]
        slope = coefficients([rates[n] for n in others], [paces[n] for n in others])
        left.append(rate - float(np.dot(slope, paces[number])))
    return stdev(left)


def coefficients(rates: Sequence[float], paces: Sequence[tuple[float, ...]]) -> np.ndarray:
    """Return the slopes of log rate over log paces, with a little shrinkage."""
    x, y = np.asarray(paces), np.asarray(rates)
    squares = x.T @ x
    return np.linalg.solve(squares + RIDGE * np.diag(np.diag(squares)) + 1e-12, x.T @ y)


@contextmanager
def burning(share: float, cores: int) -> Iterator[None]:
    """Keep a share of each core busy, by processes of ours."""
    with ExitStack() as stack:
        for _ in range(cores if share else 0):
            process = subprocess.Popen([sys.executable, str(BURN), str(share), "3600"])
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def _never() -> Ending | None:
    return None


if __name__ == "__main__":
    main()
