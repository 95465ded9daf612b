"""How often the self-check calls the training of a sound program under a sound config different.

    python -m benchmarks.self_check [PROGRAM ...]

All settings that must not change the training are compared with the program as written at once, as
before a search. What is called different is a false alarm, unless the training does depend on the
settings, as that of a net with BatchNorm does on parts of a batch.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from autotune.knobs.space.spacefile import load
from autotune.machine import hardware
from autotune.measurement.learning.training_trace import Sameness, TrainingTrace
from autotune.measurement.outcome import Ending, Outcome
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.program.program import parse_program
from autotune.program.rehearsal import RehearsalPlan
from autotune.rig.rig_factory import RigFactory
from autotune.tuning.checking.canary import exact_settings
from autotune.tuning.checking.self_check import SelfCheck
from autotune.tuning.start.first_start import START_SILENCE_S
from benchmarks.record import save

HOME = Path(__file__).parents[1]
PROGRAMS = (
    "examples/digits_cnn/train.py",
    "examples/char_gpt/train.py",
    "benchmarks/replay/programs/mlp.py",
    "benchmarks/replay/programs/words.py",
    "benchmarks/replay/programs/patches.py",
    "tests/programs/checked.py",
    "tests/programs/conv.py",
    "tests/programs/no_loader.py",
    "tests/programs/loops.py gan",
    "tests/programs/loops.py accumulates",
    "tests/programs/loops.py drop_last",
    "tests/programs/loops.py own_autocast",
    "tests/programs/by_hand.py /dev/null 100000",
    "tests/programs/loops.py subclass",
    "tests/programs/loops.py batch_sampler",
    "tests/programs/loops.py two_loaders",
    "tests/programs/loops.py called_twice",
)
MOST_S = 120.0  # of one run
STEP_S = 0.01  # as if each program were fast: all are run for the most steps


class Runs:
    """Runs of one program, each in a fresh process."""

    def __init__(self, rigs: RigFactory, base: AppliedConfig) -> None:
        self._rigs = rigs
        self._base = base

    def trace(self, config: Config, plan: RehearsalPlan, *_: object) -> TrainingTrace | Ending:
        """Return what the first steps under a config learn, or how the program fails."""
        with self._rigs.new() as rig:
            applied = replace(self._base, config=config)
            ran = rig.rehearse(applied, replace(plan, most_s=MOST_S), lambda: None)
        if ran.ending is not None:
            return ran.ending
        trace = None if ran.seen is None else ran.seen.trace
        return trace or Ending(Outcome.UNCLEAR, "its steps were not traced")


def main() -> None:
    """Run the benchmark and keep its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", help="default: sound ones")
    asked = parser.parse_args().programs
    found: dict[str, dict[str, Any]] = {}
    for program in asked or [f"{HOME}/{own}" for own in PROGRAMS]:
        name = program.removeprefix(f"{HOME}/")  # without this machine's checkout
        found[name] = verdict(program)
        print(f"{name:40}", *found[name].values(), flush=True)
    alarms = sum(one["verdict"].startswith("differs") for one in found.values())
    print(f"{alarms} of {len(found)} programs were called different")
    figures = {
        "verdicts": found,
        "different": alarms,
        "programs": len(found),
        "median_s": median(one["took_s"] for one in found.values()),
    }
    if not asked:
        print(save("self_check", figures))


def verdict(program: str) -> dict[str, Any]:
    """Return what is compared of a program, what the self-check says of it, and its seconds."""
    machine = hardware.detect()
    path, *arguments = program.split()
    with (
        tempfile.TemporaryDirectory() as folder,
        RigFactory(parse_program(path, arguments), Path(folder), machine) as rigs,
    ):
        with rigs.new() as rig:
            ready = rig.open(None, lambda: None, START_SILENCE_S)
        if isinstance(ready, Ending):
            return {"config": "", "verdict": f"failed: {ready.reason}", "took_s": 0.0}
        space = load("default").resolve(machine, ready.profile)
        base = AppliedConfig.as_written(space.baseline, ready.profile, flags=space.flags)
        check = SelfCheck(Runs(rigs, base), space, STEP_S, {})
        config = exact_settings(space)
        began = monotonic()
        agreement = check.exactly(config)
        took_s = round(monotonic() - began, 1)
    said = f"{'differs: ' * (agreement.sameness is Sameness.DIFFERS)}{agreement}"
    changes = config.changes_from(space.baseline)
    name = " ".join(f"{knob}={value}" for knob, value in changes.items())
    return {"config": name, "verdict": said, "took_s": took_s}


if __name__ == "__main__":
    main()
