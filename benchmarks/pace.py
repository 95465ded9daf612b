"""How much of the noise of visits and processes the pilots explain, and whether they bias a config.

    python -m benchmarks.pace [PROGRAM ...] [--visits 40] [--processes 0]
                              [--burn 0.0 0.5] [--spell 2.0]

Each program on one rig: visits as short as those of a search, of the program as written and of
configs that differ in one live knob, in an order drawn anew for each round. The log of each visit's
rate, within its config, is predicted from the log pace by a line through the *other* visits; the
spread of what is left is compared with the raw spread. The same with shuffled pilots must gain
nothing. The model of a search gives the speedup of each config, with pilots and without: they must
agree. ``--burn`` keeps a share of all cores busy meanwhile, in spells of random length that take
``--spell`` seconds on average; each share is a run of its own. Fresh processes give one visit each.
What was measured is kept after each run, so that a campaign that is cut short keeps its part.
"""

from __future__ import annotations

import argparse
import itertools
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from time import monotonic

import numpy as np

from autotune.knobs.space.spacefile import load
from autotune.machine import hardware
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.pilot import Pace
from autotune.measurement.stream import StreamModel
from autotune.measurement.visit import Visit
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config, KnobValue
from autotune.program.program import parse_program
from autotune.rig.rig import Rig
from autotune.rig.rig_factory import RigFactory
from autotune.rig.wire import WindowPlan
from autotune.tuning.start.first_start import START_SILENCE_S
from autotune.tuning.trial_runner import FRESH_WINDOW, VISIT
from benchmarks.record import save

PROGRAM = Path(__file__).parents[1] / "examples" / "digits_cnn" / "train.py"
BURN = Path(__file__).parent / "programs" / "burn.py"
FIRST = FRESH_WINDOW
BASELINE = "as written"
TOO_SHORT = "the program is too short: it ended before its second visit"
Seen = tuple[str, Visit]  # which config, and what was seen of it
RIDGE = 0.05  # added to the sums of squares of the paces, in units of their own


CHANGES: tuple[tuple[str, KnobValue], ...] = (
    ("num_threads", 1),
    ("num_workers", 1),
    ("precision", "bf16"),
    ("optimizer_implementation", "fused"),
)


def main() -> None:
    """Run the benchmark and keep its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", default=[str(PROGRAM)])
    parser.add_argument("--visits", type=int, default=40)
    parser.add_argument("--processes", type=int, default=0)
    parser.add_argument("--burn", type=float, nargs="+", default=[0.0], help="share of each core")
    parser.add_argument("--spell", type=float, default=2.0, help="seconds that a core stays busy")
    options = parser.parse_args()
    runs: list[dict[str, object]] = []
    for name, share in itertools.product(options.programs, options.burn):
        runs.append(measured(name, share, options))
        print(runs[-1], flush=True)
        path = save("pace", {"runs": runs})
    print(f"kept in {path}")


def measured(name: str, share: float, options: argparse.Namespace) -> dict[str, object]:
    """Visit the configs of a program while a share of each core is busy; return the figures."""
    program, machine = parse_program(name, []), hardware.detect()
    with (
        tempfile.TemporaryDirectory() as folder,
        RigFactory(program, Path(folder), machine) as rigs,
        burning(share, options.spell, machine.cpu_quota),
    ):
        began = monotonic()
        seen = list(visited(rigs, options.visits))
        figures: dict[str, object] = {
            "program": Path(name).parent.name,
            "burn": share,
            "spell_s": options.spell if share else None,
            "seconds_per_visit": round((monotonic() - began) / max(1, len(seen)), 2),
            "started": rigs.started,
            "visits": summary(seen),
            "speedups": speedups(seen),
        }
        if options.processes:
            figures["processes"] = summary([fresh(rigs) for _ in range(options.processes)])
    return figures


def visited(rigs: RigFactory, count: int) -> Iterator[Seen]:
    """Visit the configs, each once in a round, in a new process where the program has ended."""
    rng = random.Random(0)
    left: list[str] = []
    while count:
        with rigs.new() as rig:
            base, configs = opened(rig, rigs)
            before = count
            is_over = one(rig, base, FIRST, rigs.started) is None  # it may still be warming up
            while count and not is_over:
                left = left or rng.sample(list(configs), len(configs))
                applied = replace(base, config=configs[left[-1]])
                visit = one(rig, applied, VISIT, rigs.started)
                if visit is None:
                    break
                yield left.pop(), visit
                count -= 1
        if count == before:
            raise SystemExit(TOO_SHORT)


def fresh(rigs: RigFactory) -> Seen:
    """Start a process and visit the program as written in it."""
    with rigs.new() as rig:
        base, _ = opened(rig, rigs)
        visit = one(rig, base, FIRST, 1)
        if visit is None:
            raise SystemExit(TOO_SHORT)
        return BASELINE, visit


def opened(rig: Rig, rigs: RigFactory) -> tuple[AppliedConfig, dict[str, Config]]:
    """Open a rig; return the program as written and the configs to visit."""
    ready = rig.open(None, _never, START_SILENCE_S)
    if isinstance(ready, Ending):
        raise SystemExit(f"the program failed: {ready.reason}")
    space = load("default").resolve(rigs.hardware, ready.profile)
    base = AppliedConfig.as_written(space.baseline, ready.profile, flags=space.flags)
    configs = {BASELINE: base.config}
    for knob, value in CHANGES:
        if knob in space.domains and value in space.domains[knob].values:
            configs[f"{knob}={value}"] = space.canonical(base.config.replace(**{knob: value}))
    return base, configs


def one(rig: Rig, applied: AppliedConfig, plan: WindowPlan, process: int) -> Visit | None:
    """Visit a config; None if the program came to its end."""
    found = rig.measure(applied, plan, _never, START_SILENCE_S)
    if isinstance(found, Measurement):
        rate, drained = found.throughput, found.drained_share
        return Visit.of(rate, process, monotonic(), found.pace, drained_share=drained)
    if found.outcome is not Outcome.RAN_OUT:
        raise SystemExit(f"the program failed: {found.reason}")
    return None


def speedups(seen: Sequence[Seen]) -> dict[str, dict[str, list[float]]]:
    """Return the speedup of each config by the model of a search, with pilots and without."""
    bare = [(which, replace(visit, pace=None)) for which, visit in seen]
    models = {"paced": StreamModel(seen), "raw": StreamModel(bare)}
    found: dict[str, dict[str, list[float]]] = {}
    for which in dict.fromkeys(which for which, _ in seen if which != BASELINE):
        found[which] = {}
        for name, model in models.items():
            if (speedup := model.speedup(which, BASELINE)) is not None:
                found[which][name] = [round(x, 3) for x in vars(speedup).values()]
    return found


def summary(seen: Sequence[Seen]) -> dict[str, object]:
    """Return spreads in percent: raw, and of left-out visits by each pilot, both, shuffled."""
    visits = [(which, visit, visit.pace) for which, visit in seen if visit.pace is not None]
    if len(visits) < 6:
        return {"count": len(seen), "with_pilots": len(visits), "note": "too few"}
    rates, paces = centred(visits)
    rng = random.Random(0)
    shuffled = [left_out(rates, rng.sample(paces, len(paces))) for _ in range(20)]
    raw = stdev(rates)
    return {
        "count": len(seen),
        "with_pilots": len(visits),
        "raw_pct": round(100 * raw, 2),
        "one_core_pct": round(100 * left_out(rates, [(a,) for a, _ in paces]), 2),
        "all_cores_pct": round(100 * left_out(rates, [(b,) for _, b in paces]), 2),
        "both_pct": round(100 * left_out(rates, paces), 2),
        "shuffled_pct": round(100 * fmean(shuffled), 2),
        "coefficients": [round(float(b), 2) for b in coefficients(rates, paces)],
        "spread_of_paces_pct": [round(100 * stdev(p), 2) for p in zip(*paces, strict=True)],
    }


def centred(
    visits: Sequence[tuple[str, Visit, Pace]],
) -> tuple[list[float], list[tuple[float, float]]]:
    """Return log rates and log paces, each less its mean within the config."""
    rates, paces = [], []
    for which, visit, pace in visits:
        mates = [(v.log_rate, p) for other, v, p in visits if other == which]
        rates.append(visit.log_rate - fmean(rate for rate, _ in mates))
        paces.append(
            (
                pace.one_core - fmean(p.one_core for _, p in mates),
                pace.all_cores - fmean(p.all_cores for _, p in mates),
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
def burning(share: float, spell_s: float, cores: int) -> Iterator[None]:
    """Keep a share of each core busy, by processes of ours."""
    with ExitStack() as stack:
        for _ in range(cores if share else 0):
            words = [str(share), "3600", str(spell_s)]
            process = subprocess.Popen([sys.executable, str(BURN), *words])
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def _never() -> Ending | None:
    return None


if __name__ == "__main__":
    main()
