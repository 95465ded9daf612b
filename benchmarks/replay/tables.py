"""Tables: how fast every config of a program is, beside the program as written.

They were recorded on 2026-11-23 with the engine of that time: each config visited several times in
a running program, in an order drawn anew for each round; what configs that differ in few knobs have
in common was used to smooth the means. Each table says its program, machine, versions and date.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.program.config import Config, KnobValue

FOLDER = Path(__file__).parent / "tables"
SHARED = "batch_size"  # another one trains something else, so it is left as the program has it


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
