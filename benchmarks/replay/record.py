"""Record how fast every config of some programs is, visit by visit.

    python -m benchmarks.replay.record [TABLE ...] [--minutes 10]

Each program on one rig, each of its configs visited once in a round, in an order drawn anew, and
the program as written before every eighth of them. A campaign that is cut short goes on where it
stood, with another process. Nothing else may run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic, time

from autotune.knobs.space.space import ResolvedSpace
from autotune.knobs.space.spacefile import load
from autotune.machine import hardware
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.visit import Visit
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.program.program import parse_program
from autotune.rig.rig import Rig
from autotune.rig.rig_factory import RigFactory
from autotune.tuning.start.first_start import START_SILENCE_S
from autotune.tuning.trial_runner import BASELINE_EVERY, FRESH_WINDOW, VISIT
from benchmarks.replay.tables import PLANS, ROOT, Plan, line_of, product, read


def main() -> None:
    """Record for some minutes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", default=[plan.name for plan in PLANS])
    parser.add_argument("--minutes", type=float, default=10.0, help="for each table")
    options = parser.parse_args()
    for plan in PLANS:
        if plan.name in options.tables:
            record(plan, 60 * options.minutes)


def record(plan: Plan, seconds: float) -> None:
    """Visit the configs of one program for some seconds and keep each visit at once."""
    until = monotonic() + seconds
    machine = hardware.detect()
    program = parse_program(str(ROOT / plan.program), [])
    with (
        tempfile.TemporaryDirectory() as folder,
        RigFactory(program, Path(folder), machine) as rigs,
    ):
        while monotonic() < until:
            with rigs.new() as rig:
                ready = rig.open(None, _never, START_SILENCE_S)
                if isinstance(ready, Ending):
                    raise SystemExit(f"{plan.name}: the program failed: {ready.reason}")
                space = load("default").resolve(machine, ready.profile)
                base = AppliedConfig.as_written(space.baseline, ready.profile, flags=space.flags)
                _begin(plan, space)
                _visit_all(plan, rig, base, until)
    print(f"{plan.name}: {len(read(plan.path).visits)} visits", flush=True)


def _begin(plan: Plan, space: ResolvedSpace) -> None:
    """Write the first line, unless an earlier campaign did."""
    knobs = {
        knob: [value for value in values if value in space.domains[knob].values]
        for knob, values in plan.knobs.items()
        if knob in space.domains
    }
    if plan.path.exists():
        assert read(plan.path).head["knobs"] == knobs, "the table has other knobs"
        return
    machine = hardware.detect()
    head = {
        "program": plan.program,
        "knobs": knobs,
        "baseline": {knob: space.baseline[knob] for knob in knobs},
        "machine": {"cpu": machine.cpu_name, "cores": machine.cpu_quota},
        "versions": dict(machine.versions),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "began": time(),
    }
    plan.path.write_text(json.dumps(head) + "\n", encoding="utf-8")


def _visit_all(plan: Plan, rig: Rig, base: AppliedConfig, until: float) -> None:
    """Visit configs until the program ends, a config fails or the time is over."""
    table = read(plan.path)
    process = 1 + max((visit.process for _, visit, _ in table.visits), default=0)
    numbers = {config: number for number, config in enumerate(product(table.knobs))}
    with plan.path.open("a", encoding="utf-8") as file:
        plan_of_visit = FRESH_WINDOW
        for config in _order(plan, table.baseline):
            applied = replace(base, config=base.config.replace(**config))
            began = monotonic()
            found = rig.measure(applied, plan_of_visit, _never, START_SILENCE_S)
            if isinstance(found, Ending):
                if found.outcome is not Outcome.RAN_OUT:
                    row = {"n": numbers[config], "f": str(found.outcome)}
                    file.write(json.dumps(row, separators=(",", ":")) + "\n")
                return
            assert isinstance(found, Measurement)
            if plan_of_visit is VISIT:
                visit = Visit.of(
                    found.throughput,
                    process,
                    time() - table.head["began"],
                    found.pace,
                    drained_share=found.drained_share,
                )
                file.write(line_of(numbers[config], visit, monotonic() - began) + "\n")
                file.flush()
            plan_of_visit = VISIT  # the first one warms the process up
            if monotonic() > until:
                return


def _order(plan: Plan, baseline: Config) -> Iterator[Config]:
    """Yield the baseline first, and configs for ever, those with the fewest visits first."""
    yield baseline
    rng = random.Random()
    while True:
        table = read(plan.path)
        counts = Counter(config for config, _, _ in table.visits)
        able = [c for c in product(table.knobs) if c not in table.failed and _is_canonical(c)]
        fewest = min(counts[config] for config in able)
        some = [config for config in able if counts[config] == fewest and config != baseline]
        some = some or [config for config in able if config != baseline]
        for place, config in enumerate(rng.sample(some, len(some))):
            if place % (BASELINE_EVERY - 1) == 0:
                yield baseline
            yield config


def _is_canonical(config: Config) -> bool:
    """Whether no knob is idle in a config, so that another one would act alike."""
    return not (config.get("num_workers") == 0 and config.get("persistent_workers"))


def _never() -> Ending | None:
    return None


if __name__ == "__main__":
    main()
