"""The replay bench: a table that is made up here, whose true speeds are known."""

import json
import math
from itertools import product
from pathlib import Path

import pytest

from autotune.program.config import Config, KnobValue
from benchmarks.replay.world import Table, reached, read, speedup

KNOBS: dict[str, tuple[KnobValue, ...]] = {
    "workers": (0, 1, 2),
    "threads": (2, 1),
    "batch_size": (32, 64),
    "precision": ("fp32", "bf16"),
}
FACTORS: dict[str, dict[KnobValue, float]] = {
    "workers": {1: 1.2, 2: 1.1},
    "threads": {1: 0.8},
    "batch_size": {64: 1.3},
    "precision": {"bf16": 1.2},
}
FAILS = (2, 1, 32, "bf16")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    rows = [
        [*values, math.prod(FACTORS[k].get(v, 1.0) for k, v in zip(KNOBS, values, strict=True))]
        for values in product(*KNOBS.values())
        if values != FAILS
    ]
    baseline = {knob: values[0] for knob, values in KNOBS.items()}
    made = {"step_s": 0.02, "knobs": KNOBS, "baseline": baseline, "speedups": rows}
    path = tmp_path / "made.json"
    path.write_text(json.dumps(made), encoding="utf-8")
    return read(path)


def test_a_search_in_a_recorded_world_finds_a_config_near_its_best(table: Table) -> None:
    assert len(table.speedups) == 3 * 2 * 2 - 1
    assert table.speedups[table.baseline] == 1.0
    assert table.best == pytest.approx(1.2 * 1.2)
    assert speedup(table, Config({"precision": "bf16"})) == pytest.approx(1.2)
    failing = Config({"workers": 2, "threads": 1, "precision": "bf16"})
    assert speedup(table, failing) is None
    chosen, recommended = reached(table, "autotune", 120.0, seed=0)
    assert chosen > 0.9
    assert recommended in (chosen, pytest.approx(1 / table.best))
