"""The replay bench: a table that is made up here, whose true speeds are known."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from autotune.measurement.pilot import Pace
from autotune.measurement.visit import Visit
from autotune.program.config import Config, KnobValue
from benchmarks.replay.tables import Table, line_of, product, read
from benchmarks.replay.ways import Autotune, Clairvoyant, Greedy, Random, Way
from benchmarks.replay.world import Run, World

KNOBS: dict[str, tuple[KnobValue, ...]] = {
    "num_workers": (0, 1, 2),
    "num_threads": (2, 1),
    "batch_size": (32, 64, 128),
    "precision": ("fp32", "bf16"),
}
FACTORS: dict[str, dict[KnobValue, float]] = {
    "num_workers": {1: 1.2, 2: 1.1},
    "num_threads": {1: 0.8},
    "batch_size": {64: 1.3, 128: 1.5},
    "precision": {"bf16": 1.2},
}


def speed(config: Config) -> float:
    return math.prod(by_value.get(config[knob], 1.0) for knob, by_value in FACTORS.items())


def write(path: Path, visits: int = 4) -> Path:
    """Visit every config some times, on a machine whose pace changes and whose pilots show it."""
    rng = random.Random(0)
    baseline = {knob: values[0] for knob, values in KNOBS.items()}
    lines = [json.dumps({"knobs": KNOBS, "baseline": baseline})]
    configs = list(enumerate(product(KNOBS)))
    at_s = 0.0
    for _ in range(visits):
        for number, config in rng.sample(configs, len(configs)):
            at_s += 1.3
            pace = 0.1 * math.sin(at_s / 20)
            rate = math.log(1000 * speed(config)) + pace + rng.gauss(0.0, 0.03)
            visit = Visit(1, at_s, rate, 0.02, Pace(pace, pace + rng.gauss(0.0, 0.01)))
            lines.append(line_of(number, visit, 1.3))
    lines.append(lines[-1][:-9])  # a line that was cut off
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return read(write(tmp_path_factory.mktemp("replay") / "made.jsonl"))


@pytest.fixture(scope="module")
def world(table: Table) -> World:
    return World(table)


def test_a_table_is_read_as_it_was_written(table: Table) -> None:
    assert len(table.visits) == 4 * 36
    assert table.baseline == Config({k: v[0] for k, v in KNOBS.items()})
    _, visit, cost_s = table.visits[-1]
    assert visit.pace is not None
    assert cost_s == 1.3


def test_the_truth_is_what_the_visits_say_at_the_median_pace(world: World) -> None:
    for config, log_speed in world.truth.items():
        assert math.exp(log_speed) == pytest.approx(speed(config), rel=0.08)


def test_what_visits_differed_by_is_played_in_its_order(world: World) -> None:
    runs = [Run(world, seed) for seed in (1, 1, 2)]
    config = world.table.baseline
    rates = [[run.visit(config) for _ in range(5)] for run in runs]
    assert rates[0] == rates[1] != rates[2]
    assert runs[0].now_s == pytest.approx(5 * 1.3)


def test_a_search_reaches_the_best_sooner_than_chance(world: World) -> None:
    def reached(cls: type[Way], seconds: float) -> float:
        shares = []
        for seed in range(8):
            search = cls(Run(world, seed), seconds)
            search.go_on(seconds)
            shares.append(world.reached(search.recommend()))
        return sum(shares) / len(shares)

    assert reached(Clairvoyant, 15.0) == 1.0
    assert reached(Autotune, 25.0) > 0.95
    assert reached(Autotune, 25.0) > reached(Random, 25.0)
    assert reached(Greedy, 60.0) > 0.8


def test_a_process_for_each_config_takes_longer(world: World) -> None:
    run = Run(world, 0)
    run.start(world.table.baseline)
    assert run.now_s > world.start_s
