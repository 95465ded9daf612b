"""Which config is worth the next visit, where the true speeds are known by formula."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from autotune.measurement.memory import Memory
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.visit import Visit
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain
from autotune.results.record import AGAIN, TrialRecord
from autotune.tuning.choosing.bounds import Share
from autotune.tuning.choosing.chooser import MAX_LOOKS, RACING_SHARE, SIMPLER, SPACING, Chooser
from tests.made import make_hardware, make_profile, make_record, make_space

SPACE = make_space(
    {
        "num_workers": (0, 1, 2),
        "num_threads": (1, 2),
        "batch_size": (64, 128, 256),
        "precision": ("fp32", "bf16"),
        "channels_last": (False, True),
        "compile": ("off", "default"),
    }
).resolve(make_hardware(), make_profile())
Speed = Callable[[Config], float | Ending]


def formula(**factors: Mapping[KnobValue, float]) -> Speed:
    return lambda config: math.prod(
        by_value.get(config[knob], 1.0) for knob, by_value in factors.items()
    )


class Course:
    """A chooser whose choices are measured by a formula, with some noise."""

    def __init__(self, speed: Speed, noise: float = 0.03, seed: int = 0, **about: object) -> None:
        self.speed, self.noise = speed, noise
        self.random = random.Random(seed)
        self.chooser = Chooser(SPACE, seed, **about)  # type: ignore[arg-type]
        self.records = [self._measured(SPACE.baseline, "the program as written")]

    def run(self, count: int, racing: int = 0) -> list[Config]:
        """Choose this many times; the last *racing* of them with little time left."""
        for number in range(count):
            left = 1.0 if number < count - racing else RACING_SHARE / 2
            choice = self.chooser.choose(self.records, left)
            if choice is None:
                break
            self.records.append(self._measured(choice.config, choice.why))
        return [record.config for record in self.records[1:]]

    def _measured(self, config: Config, why: str) -> TrialRecord:
        speed = self.speed(config)
        if isinstance(speed, Ending):
            return make_record(config, speed, why)
        rate = math.log(1000 * speed) + self.random.gauss(0.0, self.noise)
        visit = Visit(1, 2.0 * len(getattr(self, "records", ())), rate, self.noise / 2)
        return replace(make_record(config, speed, why), visits=(visit,))

    def reached(self) -> float:
        """Return the speed of the best config that was visited, relative to the best of all."""
        best = max(float(self._speed_of(c)) for c in SPACE.configs(SPACE.baseline))
        return max(float(self._speed_of(r.config)) for r in self.records) / best

    def _speed_of(self, config: Config) -> float:
        speed = self.speed(config)
        return 0.0 if isinstance(speed, Ending) else speed


PROGRAMS: dict[str, Speed] = {
    "three knobs help": formula(
        num_workers={2: 1.3}, precision={"bf16": 1.3}, batch_size={128: 1.1, 256: 1.25}
    ),
    "the batch alone helps": formula(
        batch_size={128: 1.3, 256: 1.6},
        precision={"bf16": 0.6},
        num_workers={1: 0.9, 2: 0.8},
        num_threads={1: 0.6},
    ),
    "two knobs help only together": lambda config: {
        (2, 2): 1.01,
        (0, 1): 0.8,
        (2, 1): 1.42,
    }.get((int(config["num_workers"]), int(config["num_threads"])), 0.9),
    "nothing helps": formula(
        precision={"bf16": 0.7}, num_workers={1: 0.9, 2: 0.9}, num_threads={1: 0.7}
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_best_is_found_within_thirty_visits_whatever_helps(name: str) -> None:
    """In the mean over seeds; a space of 432 live configs."""
    reached = []
    for seed in range(5):
        course = Course(PROGRAMS[name], seed=seed)
        course.run(30, racing=10)
        reached.append(course.reached())
    assert sum(reached) / len(reached) > 0.97, reached


def test_moves_that_do_not_fit_into_memory_at_once_are_tried_with_a_smaller_batch() -> None:
    """A baseline of 8 GiB leaves no room for four times its batch, but may for twice of it."""
    gib = 1 << 30
    all_in = SPACE.baseline.replace(channels_last=True, batch_size=256)
    course = Course(formula(), all_in=all_in, memory_bytes=16.0 * gib)
    baseline = course.records[0]
    assert baseline.measurement is not None
    memory = Memory(device_reserved_bytes=8 * gib)
    course.records[0] = replace(baseline, measurement=replace(baseline.measurement, memory=memory))
    choices = course.run(8)
    assert choices[0] == all_in.replace(batch_size=128)
    assert all_in not in choices[1:2]


def test_in_a_small_space_what_may_gain_is_measured_again_instead_of_ending() -> None:
    """One config besides the program's: a noisy visit does not tell 2 % from none."""
    space = make_space({"num_threads": (1, 2)}).resolve(make_hardware(), make_profile())
    other = space.baseline.replace(num_threads=1)
    chooser = Chooser(space, 0)

    def seen(config: Config, number: int) -> TrialRecord:
        rate = math.log(1020.0 if config == other else 1000.0)
        visit = Visit(1, 2.0 * number, rate, 0.06)
        return replace(make_record(config, 1.0, "a test"), visits=(visit,))

    records = [seen(space.baseline, 0)]
    while (choice := chooser.choose(records, 0.8)) is not None:
        records.append(seen(choice.config, len(records)))
    assert 2 <= len(records) - 1 <= MAX_LOOKS


def test_the_moves_that_should_help_come_first_all_at_once() -> None:
    all_in = SPACE.baseline.replace(precision="bf16", batch_size=256)
    course = Course(PROGRAMS["nothing helps"], all_in=all_in)
    assert course.run(3)[0] == all_in
    assert course.records[1].why.startswith("every move")


def test_each_choice_is_canonical_without_conflicts_and_not_repeated_too_often() -> None:
    course = Course(PROGRAMS["three knobs help"])
    configs = course.run(40, racing=15)
    for config in configs:
        assert SPACE.canonical(config) == config
        assert not SPACE.conflicts(config)
        assert config != SPACE.baseline
        assert configs.count(config) <= MAX_LOOKS
    for place, config in enumerate(configs):
        assert config not in configs[max(0, place - SPACING) : place]
    for record in course.records[1:]:
        earlier = [r.config for r in course.records[: course.records.index(record)]]
        assert record.config in earlier or record.why != AGAIN


def test_what_failed_rules_out_what_must_fail_as_well() -> None:
    def speed(config: Config) -> float | Ending:
        if int(config["batch_size"]) >= 128:
            return Ending(Outcome.OUT_OF_MEMORY, "the memory is full")
        if config["precision"] == "bf16":
            return Ending(Outcome.CRASHED, "ValueError: no")
        return 1.0

    course = Course(speed)
    configs = course.run(40)
    too_large = [c for c in configs if int(c["batch_size"]) >= 128]
    # A smaller batch or another precision may fit where it did not
    assert len({(c["batch_size"], c["precision"]) for c in too_large}) == len(too_large)
    assert len([c for c in configs if c["precision"] == "bf16"]) <= len(too_large) + 2
    assert len(configs) > 10


def test_changes_that_gain_nothing_are_left_out_of_the_best_config() -> None:
    """Of four moves at once, one helps; when time gets short, most others are found to be idle."""
    everything = SPACE.baseline.replace(
        num_workers=1, batch_size=128, precision="bf16", channels_last=True
    )

    def cost_s(here: Config, config: Config) -> float:
        return 50.0 if SPACE.needs_restart(here, config) else 1.0

    left = []
    for seed in range(4):
        course = Course(
            formula(precision={"bf16": 1.5}), 0.01, seed, all_in=everything, cost_s=cost_s
        )
        course.run(36, racing=18)
        assert SIMPLER in {r.why for r in course.records}
        level = [r.config for r in course.records if course.speed(r.config) == 1.5]
        left.append(min(len(config.changes_from(SPACE.baseline)) for config in level))
    assert sum(left) <= 9, "of 16"


def test_larger_batches_with_fewer_of_them_to_a_step_are_neighbours() -> None:
    """Neither change alone keeps the samples of a step."""
    space = replace(
        SPACE,
        domains={"batch_size": Domain((64, 128)), "accumulation_steps": Domain((1, 2))},
        baseline=Config({"batch_size": 64, "accumulation_steps": 2}),
        max_global_batch=128,
    )
    record = replace(
        make_record(space.baseline, 1.0), visits=(Visit(1, 0.0, math.log(1000.0), 0.01),)
    )
    choice = Chooser(space, 0).choose([record])
    assert choice is not None
    assert choice.config == Config({"batch_size": 128, "accumulation_steps": 1})


def test_a_fresh_process_is_started_once_it_promises_more_than_its_time_is_worth() -> None:
    def cost_s(here: Config, config: Config) -> float:
        return 20.0 if SPACE.needs_restart(here, config) else 1.0

    compiles = formula(compile={"default": 1.5}, precision={"bf16": 1.2})
    configs = Course(compiles, cost_s=cost_s).run(60)
    starts = [c["compile"] for c in configs]
    assert "default" in starts
    first = starts.index("default")
    assert first > 5, "live knobs come first"
    never = Course(
        compiles, cost_s=lambda here, config: math.inf if SPACE.needs_restart(here, config) else 1.0
    )
    assert {c["compile"] for c in never.run(60)} == {"off"}


def test_a_knob_that_cannot_gain_enough_is_not_visited_unless_the_rest_became_faster() -> None:
    shares = {"channels_last": Share(0.01, "convolutions")}
    slow = Course(PROGRAMS["nothing helps"], shares=shares).run(40)
    assert {c["channels_last"] for c in slow} == {False}
    fast = formula(batch_size={128: 2.0, 256: 4.0}, channels_last={True: 1.05})
    assert True in {c["channels_last"] for c in Course(fast, shares=shares).run(40)}


def test_where_nothing_is_left_that_may_help_there_is_no_choice() -> None:
    course = Course(formula(), noise=0.002)
    assert len(course.run(100, racing=90)) < 80
