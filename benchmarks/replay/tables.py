"""Tables: what was recorded of a program, one JSON object per line.

The first line holds the program, the knobs with their values, the baseline, the machine and the
date. Each further line is one visit: ``n`` the number of the config in the product of the values,
``p`` the process, ``t`` seconds since the first visit of the campaign, ``r`` the logarithm of the
samples per second, ``s`` its standard deviation by the visit's own blocks, ``c`` the seconds that
the visit took, switching included, and ``o``, ``a`` the paces of the pilots; or ``n`` and ``f``,
the way in which the config failed.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.measurement.pilot import Pace
from autotune.measurement.visit import Visit
from autotune.program.config import Config, KnobValue

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "tables"


@dataclass(frozen=True)
class Plan:
    """A program and the knobs of which every combination is recorded.

    Attributes:
        name: Of the table.
        program: Its file, from the project's root.
        knobs: Values by knob; those that the program or the machine does not offer are left out.
    """

    name: str
    program: str
    knobs: Mapping[str, tuple[KnobValue, ...]]

    @property
    def path(self) -> Path:
        """The table's file."""
        return FOLDER / f"{self.name}.jsonl"


PRECISION: tuple[KnobValue, ...] = ("fp32", "bf16")
PLANS = (
    Plan(
        "digits_cnn",
        "examples/digits_cnn/train.py",
        {
            "num_workers": (0, 1, 2),
            "num_threads": (2, 1),
            "batch_size": (32, 64),
            "precision": PRECISION,
            "optimizer_implementation": ("for-loop", "fused"),
            "channels_last": (False, True),
        },
    ),
    Plan(
        "char_gpt",
        "examples/char_gpt/train.py",
        {
            "num_threads": (2, 1),
            "batch_size": (32, 64, 128, 256),
            "precision": PRECISION,
            "matmul_precision": ("highest", "medium"),
            "sdpa_backend": ("auto", "math"),
            "optimizer_implementation": ("for-loop", "fused"),
        },
    ),
    Plan(
        "photos_resnet",
        "examples/photos_resnet/train.py",
        {
            "num_workers": (0, 1, 2),
            "num_threads": (2, 1),
            "batch_size": (32, 64),
            "precision": PRECISION,
            "channels_last": (False, True),
        },
    ),
    Plan(
        "mlp",
        "benchmarks/replay/programs/mlp.py",
        {
            "num_workers": (0, 1),
            "num_threads": (2, 1),
            "batch_size": (16, 32, 64, 128, 256, 512),
            "precision": PRECISION,
            "optimizer_implementation": ("for-loop", "foreach", "fused"),
        },
    ),
    Plan(
        "words",
        "benchmarks/replay/programs/words.py",
        {
            "num_workers": (0, 1, 2),
            "num_threads": (2, 1),
            "batch_size": (16, 32, 64, 128),
            "precision": PRECISION,
            "optimizer_implementation": ("for-loop", "fused"),
        },
    ),
    Plan(
        "patches",
        "benchmarks/replay/programs/patches.py",
        {
            "num_workers": (0, 1, 2),
            "num_threads": (2, 1),
            "batch_size": (32, 64, 128),
            "precision": PRECISION,
            "channels_last": (False, True),
            "persistent_workers": (False, True),
        },
    ),
)


@dataclass
class Table:
    """What was recorded of one program.

    Attributes:
        head: The first line.
        visits: Each with its config and the seconds that it took.
        failed: How a config failed.
    """

    head: dict[str, Any]
    visits: list[tuple[Config, Visit, float]] = field(default_factory=list)
    failed: dict[Config, str] = field(default_factory=dict)

    @property
    def knobs(self) -> dict[str, tuple[KnobValue, ...]]:
        """Values by knob."""
        return {knob: tuple(values) for knob, values in self.head["knobs"].items()}

    @property
    def baseline(self) -> Config:
        """The config of the program as written."""
        return Config(self.head["baseline"])


def product(knobs: Mapping[str, tuple[KnobValue, ...]]) -> Iterator[Config]:
    """Yield every combination of the values, in an order that stays the same."""
    for values in itertools.product(*knobs.values()):
        yield Config(dict(zip(knobs, values, strict=True)))


def read(path: Path) -> Table:
    """Return a table; a line that was cut off is left out."""
    lines = path.read_text(encoding="utf-8").splitlines()
    table = Table(json.loads(lines[0]))
    configs = list(product(table.knobs))
    for line in lines[1:]:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        config = configs[row["n"]]
        if "f" in row:
            table.failed[config] = row["f"]
            continue
        pace = Pace(row["o"], row["a"]) if "o" in row else None
        table.visits.append((config, Visit(row["p"], row["t"], row["r"], row["s"], pace), row["c"]))
    return table


def line_of(number: int, visit: Visit, cost_s: float) -> str:
    """Return a visit as it is kept."""
    row = {
        "n": number,
        "p": visit.process,
        "t": round(visit.at_s, 1),
        "r": round(visit.log_rate, 4),
        "s": round(visit.own_spread, 4),
        "c": round(cost_s, 2),
    }
    if visit.pace is not None:
        row |= {"o": round(visit.pace.one_core, 4), "a": round(visit.pace.all_cores, 4)}
    return json.dumps(row, separators=(",", ":"))
