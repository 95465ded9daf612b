"""How often the self-check calls the training of a sound program under a sound config different.

    python -m benchmarks.self_check [PROGRAM ...] [--knobs threads,memory_format]

All settings that must not change the training are compared with the program as written at once, as
before a search; with ``--knobs``, each value of these alone. What is called different is a false
alarm, unless the training does depend on the setting, as that of a net with BatchNorm does on parts
of a batch.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from autotune.knobs.space.space import ResolvedSpace
from autotune.knobs.space.spacefile import load
from autotune.machine import hardware
from autotune.measurement.learning.training_trace import Sameness, TrainingTrace
from autotune.measurement.outcome import Ending, Outcome
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.program.program import parse_program
from autotune.program.rehearsal import Rehearsal, RehearsalPlan
from autotune.rig.rig_factory import RigFactory
from autotune.tuning.checking.canary import exact_settings
from autotune.tuning.checking.self_check import Known, SelfCheck
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
    parser.add_argument("--knobs", default="", help="each value of these alone, with commas")
    options = parser.parse_args()
    only = {knob for knob in options.knobs.split(",") if knob}
    programs = options.programs or [f"{HOME}/{own}" for own in PROGRAMS]
    found = {_name(program): dict(_verdicts(program, only)) for program in programs}
    verdicts = [one["verdict"] for own in found.values() for one in own.values()]
    alarms = sum(verdict.startswith("differs") for verdict in verdicts)
    print(f"{alarms} of {len(verdicts)} configs were called different")
    taken = sorted(one["took_s"] for own in found.values() for one in own.values())
    figures = {
        "verdicts": found,
        "different": alarms,
        "configs": len(verdicts),
        "median_s": median(taken) if taken else None,
        "empty": [name for name, own in found.items() if not own],
    }
    if not (options.programs or only):
        print(save("self_check", figures))


def _name(program: str) -> str:
    """Return a program and its arguments as readers know it, without this machine's checkout."""
    return program.removeprefix(f"{HOME}/")


def _verdicts(program: str, only: set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each config of a program with what the self-check says of it, and its seconds."""
    machine = hardware.detect()
    path, *arguments = program.split()
    with (
        tempfile.TemporaryDirectory() as folder,
        RigFactory(parse_program(path, arguments), Path(folder), machine) as rigs,
    ):
        with rigs.new() as rig:
            ready = rig.open(None, lambda: None, START_SILENCE_S)
        if isinstance(ready, Ending):
            print(f"{program}: failed: {ready.reason}")
            return
        space = load("default").resolve(machine, ready.profile)
        base = AppliedConfig.as_written(space.baseline, ready.profile, flags=space.flags)
        check = SelfCheck(Runs(rigs, base), space, STEP_S, Known())
        for config in _alone(space, only) if only else [exact_settings(space)]:
            changes = config.changes_from(space.baseline)
            name = " ".join(f"{knob}={value}" for knob, value in changes.items())
            began = monotonic()
            agreement = check.check(config, Rehearsal(None)).training
            said = "no trace" if agreement is None else str(agreement)
            if agreement is not None and agreement.sameness is Sameness.DIFFERS:
                said = f"differs: {said}"
            took_s = monotonic() - began
            print(
                f"{program.rsplit('/', maxsplit=1)[-1]:24} {name}: {said} ({took_s:.0f} s)",
                flush=True,
            )
            yield name, {"verdict": said, "took_s": round(took_s, 1)}


def _alone(space: ResolvedSpace, only: set[str]) -> Iterator[Config]:
    """Yield the program's config with each value of each of these knobs, one at a time."""
    own = space.baseline
    for knob, domain in space.domains.items():
        for value in domain.values if knob in only else ():
            # A worker option does nothing without a worker
            workers = {"workers": 1} if "workers" in own and knob != "workers" else {}
            alone = space.canonical(own.replace(**{knob: value}))
            config = alone if alone != own else own.replace(**workers, **{knob: value})
            if config != own and not space.conflicts(config):
                yield space.canonical(config)


if __name__ == "__main__":
    main()
