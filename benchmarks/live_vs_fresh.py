"""Whether configs measured live on one rig rank as they do in fresh processes, and what each costs.

    python -m benchmarks.live_vs_fresh [PROGRAM] [--repeats 2]

Twelve configs; live as a search measures them, against a baseline near in time; fresh with one new
process per config and repeat, against new processes of the baseline in between.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, median
from time import monotonic

from autotune.knobs.space.spacefile import load
from autotune.machine import hardware
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import Ending
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config, KnobValue
from autotune.program.program import parse_program
from autotune.rig.rig_factory import RigFactory
from autotune.tuning.start.first_start import START_SILENCE_S
from autotune.tuning.trial_runner import FRESH_WINDOW, TrialRunner
from benchmarks.record import save

PROGRAM = Path(__file__).parents[1] / "examples" / "digits_cnn" / "train.py"
CHANGES: tuple[dict[str, KnobValue], ...] = (
    {"num_threads": 1},
    {"num_workers": 1},
    {"num_workers": 1, "num_threads": 1},
    {"num_workers": 2, "num_threads": 1},
    {"num_workers": 2},
    {"batch_size": 64},
    {"batch_size": 128},
    {"batch_size": 256},
    {"precision": "bf16"},
    {"channels_last": True},
    {"num_workers": 1, "num_threads": 1, "batch_size": 128},
    {"num_workers": 1, "num_threads": 1, "batch_size": 128, "precision": "bf16"},
)


def main() -> None:
    """Run the benchmark and keep its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", nargs="?", default=str(PROGRAM))
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    program, machine = parse_program(options.program, []), hardware.detect()
    with (
        tempfile.TemporaryDirectory() as folder,
        RigFactory(program, Path(folder), machine) as rigs,
    ):
        with TrialRunner(rigs) as trial_runner:
            began = monotonic()
            ready = trial_runner.observe(_never)
            if isinstance(ready, Ending):
                raise SystemExit(f"the program failed: {ready.reason}")
            space = load("default").resolve(machine, ready.profile)
            base = AppliedConfig.as_written(space.baseline, ready.profile)
            trial_runner.set_up(space, base)
            trial_runner.baseline(_never)
            configs = [space.canonical(base.config.replace(**c)) for c in CHANGES]
            live = [_live(trial_runner, config) for config in configs]
            live_s = monotonic() - began
        began = monotonic()
        fresh = _fresh(rigs, base, configs, options.repeats)
        fresh_s = (monotonic() - began) / options.repeats
    differences = [100 * abs(a / b - 1) for a, b in zip(live, fresh, strict=True)]
    for changes, a, b in zip(CHANGES, live, fresh, strict=True):
        print(f"live {a:.3f}x  fresh {b:.3f}x  {changes}")
    figures = {
        "program": Path(options.program).parent.name,
        "configs": len(configs),
        "repeats": options.repeats,
        "spearman": round(spearman(live, fresh), 4),
        "median_difference_pct": round(median(differences), 2),
        "largest_difference_pct": round(max(differences), 2),
        "live_s": round(live_s, 1),
        "fresh_s_per_repeat": round(fresh_s, 1),
        "times_more_configs_per_minute": round(fresh_s / live_s, 2),
        "speedups": [
            {"changes": c, "live": round(a, 4), "fresh": round(b, 4)}
            for c, a, b in zip(CHANGES, live, fresh, strict=True)
        ],
    }
    print({k: v for k, v in figures.items() if k != "speedups"})
    print(f"kept in {save('live_vs_fresh', figures)}")


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the correlation of the ranks; values are assumed to differ."""
    ranks = [[sorted(values).index(v) for v in values] for values in (one, other)]
    count = len(one)
    squares: int = sum((a - b) ** 2 for a, b in zip(*ranks, strict=True))
    return 1 - 6 * squares / (count * (count**2 - 1))


def _live(trial_runner: TrialRunner, config: Config) -> float:
    record = trial_runner(config, "benchmark", _never, None)
    if record.speedup is None:
        raise SystemExit(f"{config} was not measured: {record.ending}")
    return record.speedup.estimate


def _fresh(
    rigs: RigFactory, base: AppliedConfig, configs: Sequence[Config], repeats: int
) -> list[float]:
    """The speedup of each config: processes of config and baseline in turn, geometric mean."""
    ratios: list[list[float]] = [[] for _ in configs]
    for _ in range(repeats):
        for number, config in enumerate(configs):
            reference = _process(rigs, base)
            ratios[number].append(_process(rigs, replace(base, config=config)) / reference)
    return [geometric_mean(found) for found in ratios]


def _process(rigs: RigFactory, applied: AppliedConfig) -> float:
    with rigs.new() as rig:
        opened = rig.open(applied, _never, START_SILENCE_S)
        if isinstance(opened, Ending):
            raise SystemExit(f"a fresh process failed: {opened.reason}")
        result = rig.measure(applied, FRESH_WINDOW, _never, START_SILENCE_S)
    if not isinstance(result, Measurement):
        raise SystemExit(f"a fresh process failed: {result.reason}")
    return result.throughput.estimate


def _never() -> Ending | None:
    return None


if __name__ == "__main__":
    main()
