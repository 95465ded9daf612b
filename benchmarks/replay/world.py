"""Recorded programs: how fast every config is, and searches of them on the scripted machine.

The tables were recorded on 2026-11-23 with the engine of that time: each config visited several
times in a running program, in an order drawn anew for each round; what configs that differ in few
knobs have in common was used to smooth the means. Each says its program, machine and versions.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.knobs import registry
from autotune.measurement.outcome import Ending
from autotune.program.config import Config, KnobValue
from autotune.program.profile import OptimizerFacts, Profile
from tests.made import PROFILE, make_loader, make_profile
from tests.scripted import BATCH, CRASH, Question, Script, begin

FOLDER = Path(__file__).parent / "tables"
SHARED = "batch_size"  # another one trains something else, so it is left as the program has it


NOISE: dict[str, Any] = {
    "start_s": 8.0, "noise": 0.07, "drift": 0.1, "ratio_noise": 0.013, "ratio_growth": 0.1,
}  # fmt: skip
IMPLEMENTATIONS = ("for-loop", "foreach", "fused")
ADAMW = OptimizerFacts("AdamW", ("AdamW", "Adam"), (0.001,), "for-loop", IMPLEMENTATIONS)


@dataclass(frozen=True)
class Table:
    """What was recorded of one program, of the configs with its own batch.

    Attributes:
        step_s: Seconds of a step as written.
        knobs: Values by knob.
        baseline: The config of the program as written.
        speedups: By config; those that could not be measured are missing.
    """

    step_s: float
    knobs: Mapping[str, tuple[KnobValue, ...]]
    baseline: Config
    speedups: Mapping[Config, float]

    @property
    def best(self) -> float:
        """The largest speedup."""
        return max(self.speedups.values())


def names() -> list[str]:
    """Return the names of all tables."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def read(path: Path) -> Table:
    """Return a table."""
    data = json.loads(path.read_text(encoding="utf-8"))
    knobs, own = data["knobs"], data["baseline"].get(SHARED)
    rows = [(dict(zip(knobs, row, strict=False)), row[-1]) for row in data["speedups"]]
    return Table(
        data["step_s"],
        {knob: tuple(values) for knob, values in knobs.items() if knob != SHARED},
        _without_batch(data["baseline"]),
        {_without_batch(config): speedup for config, speedup in rows if config.get(SHARED) == own},
    )


def _without_batch(config: Mapping[str, KnobValue]) -> Config:
    return Config({knob: value for knob, value in config.items() if knob != SHARED})


@dataclass
class Recorded(Script):
    """A program that is as fast as its table says."""

    table: Table | None = None

    def rate(self, config: Config) -> float:
        """Return the true samples/s of a config."""
        return super().rate(config) * (speedup(self.table, config) or 1.0)


def speedup(table: Table | None, config: Config) -> float | None:
    """Return the true speedup of a config; None if it was not recorded."""
    assert table is not None, "a recorded program has a table"
    own = {knob: config.get(knob, value) for knob, value in table.baseline.items()}
    return table.speedups.get(Config(own))


def script_of(table: Table) -> Recorded:
    """Return a script with the speeds of a table; configs that are not in it crash."""

    def ends(question: Question) -> Ending | None:
        config = question.config
        return CRASH if config is not None and speedup(table, config) is None else None

    rate = BATCH / table.step_s
    return Recorded(samples_per_s=rate, profile=profile_of(table), ends=ends, table=table, **NOISE)


def profile_of(table: Table) -> Profile:
    """Return the profile of a program with the baseline of a table."""
    own = table.baseline
    loader = make_loader(num_workers=own.get("workers", 0))
    return make_profile(
        loaders=(loader,) if "workers" in own else (),
        optimizers=(ADAMW,),
        threads=own["threads"],
        attention="auto" if "attention" in own else None,
        conv2d_layers=PROFILE.model.conv2d_layers if "memory_format" in own else 0,
    )


def reached_in(name: str, sampler: str, budget_s: float, seed: int) -> tuple[float, float]:
    """Run a search of a table by its name; see ``reached``."""
    return reached(read(FOLDER / f"{name}.json"), sampler, budget_s, seed)


def reached(table: Table, sampler: str, budget_s: float, seed: int) -> tuple[float, float]:
    """Run one search in virtual time, by one way to choose configs.

    Returns:
        The true speed of the config that it proved or tried to prove, as a share of the best one's;
        the same of the one that it recommends.
    """
    assert registry(), "the knobs are known before the search begins"
    with tempfile.TemporaryDirectory() as folder:
        searched = begin(Path(folder), script_of(table), table.knobs, seed, sampler=sampler)
        result = searched.go_on(budget_s)
    found = (result.candidate or result.baseline, result.best)
    chosen, best = ((speedup(table, config) or 1.0) / table.best for config in found)
    return chosen, best
