"""What each strategy costs or gains: on one rank, where it can only cost, and on all devices.

    python -m benchmarks.strategies [PROGRAM] [--rounds 6]

Each round starts one fresh process group per strategy and number of ranks, in an order that turns
from round to round, and the program as written once at each end. Ratios are taken within a round,
against the mean of its two, with the same samples in a batch of each rank. With GPUs the
collectives are nccl's, else gloo's.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from autotune.knobs.strategies.base import devices_of
from autotune.machine import hardware
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import Ending
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.program.program import parse_program
from autotune.rig.rig_factory import RigFactory
from autotune.tuning.live_rig import ALONE_S, WARM_UP_S, LiveRig, Stay
from autotune.tuning.start.first_start import START_SILENCE_S
from benchmarks.record import as_figures, median_ratio, save

PROGRAM = Path(__file__).parents[1] / "examples" / "digits_cnn" / "train.py"
STRATEGIES = ("ddp", "zero1", "fsdp")


def main() -> None:
    """Run the benchmark and keep its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", nargs="?", default=str(PROGRAM))
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    program, machine = parse_program(options.program, []), hardware.detect()
    with (
        tempfile.TemporaryDirectory() as folder,
        RigFactory(program, Path(folder), machine) as rigs,
    ):
        with rigs.new() as rig:
            ready = rig.open(None, lambda: None, START_SILENCE_S)
        if isinstance(ready, Ending):
            raise SystemExit(f"the program failed: {ready.reason}")
        baseline = Config({"devices": "single"})
        base = AppliedConfig.as_written(baseline, ready.profile)
        devices = devices_of(machine, ready.profile)
        configs = [
            baseline.replace(devices="single" if name == "single" else f"{name}-{ranks}")
            for ranks in dict.fromkeys((1, devices))
            for name in STRATEGIES
        ]
        ratios: dict[Config, list[float]] = {config: [] for config in configs}
        shares: dict[Config, list[float]] = {config: [] for config in configs}
        for number in range(options.rounds):
            turned = configs[number % len(configs) :] + configs[: number % len(configs)]
            before = _measure(rigs, base)
            found = {config: _measure(rigs, replace(base, config=config)) for config in turned}
            after = _measure(rigs, base)
            single = fmean(m.throughput.estimate for m in (before, after))
            for config, measurement in found.items():
                ratios[config].append(measurement.throughput.estimate / single)
                shares[config].append(measurement.communication_share or 0.0)
    figures: dict[str, object] = {}
    for config in configs:
        ratio = median_ratio(ratios[config])
        name = str(config["devices"])
        figures[name] = {
            "ratio": as_figures(ratio),
            "communication_share": round(fmean(shares[config]), 3),
            "rounds": options.rounds,
        }
        print(f"{name}: {ratio.estimate:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]")
    figures = {"program": program.name, **figures}
    print(f"kept in {save('strategies', figures, device=ready.profile.device)}")


def _measure(rigs: RigFactory, applied: AppliedConfig) -> Measurement:
    with rigs.new() as rig:
        opened = rig.open(applied, lambda: None, START_SILENCE_S)
        if isinstance(opened, Ending):
            raise SystemExit(f"{applied.config} failed: {opened.reason}")
        live = LiveRig.on(rigs, rig, applied)
        _stay(live, applied.config, WARM_UP_S)
        stay = _stay(live, applied.config, ALONE_S)
    return Measurement.of(stay.turns, stay.taken)


def _stay(live: LiveRig, config: Config, seconds: float) -> Stay:
    stay = live.stay(config, lambda: None, seconds, with_loads=True)
    if isinstance(stay, Ending):
        raise SystemExit(f"{config} failed: {stay.reason}")
    return stay


if __name__ == "__main__":
    main()
