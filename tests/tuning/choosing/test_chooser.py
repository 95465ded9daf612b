"""Which config is worth a seat, where the true speeds are known by formula."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.readings import Memory
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain
from autotune.results.record import TrialRecord
from autotune.tuning.choosing.chooser import (
    ALL_IN,
    PROMISES,
    Chooser,
    Field,
    Forecast,
)
from tests.made import (
    GIB,
    configs_of,
    make_hardware,
    make_measurement,
    make_profile,
    make_record,
    make_space,
    make_speeds,
)

SPACE = make_space(
    {
        "workers": (0, 1, 2),
        "threads": (1, 2),
        "batch_size": (64, 128, 256),
        "precision": ("fp32", "bf16"),
        "memory_format": ("contiguous", "channels_last"),
        "compile": ("off", "default"),
    }
).resolve(make_hardware(), make_profile())
OWN = SPACE.baseline
FOUR = OWN.replace(workers=1, batch_size=128, precision="bf16", memory_format="channels_last")
Speed = Callable[[Config], float | Ending]


def formula(**factors: Mapping[KnobValue, float]) -> Speed:
    return lambda config: math.prod(
        by_value.get(config[knob], 1.0) for knob, by_value in factors.items()
    )


class Course:
    """A chooser whose choices are measured by a formula, with some noise."""

    def __init__(self, speed: Speed, noise: float = 0.02, seed: int = 0, **about: object) -> None:
        self.speed, self.noise = speed, noise
        self.random = random.Random(seed)
        self.chooser = Chooser(SPACE, seed, **about)  # type: ignore[arg-type]
        self.records: list[TrialRecord] = [make_record(OWN, 1.0, "the program as written")]
        self.seen: dict[Config, float] = {OWN: 1.0}

    def run(self, count: int, late: int = 0) -> list[Config]:
        """Choose this many times; the last *late* of them with little time left."""
        for number in range(count):
            choice = self.chooser.choose(self.field(1.0 if number < count - late else 0.1))
            if choice is None:
                continue
            speed = self.speed(choice.config)
            self.records.append(make_record(choice.config, speed, choice.why))
            if not isinstance(speed, Ending):
                self.seen[choice.config] = speed * math.exp(self.random.gauss(0.0, self.noise))
        return self.configs

    def field(self, share_left: float) -> Field:
        most = max(self.seen.values()) * math.exp(-3 * self.noise)
        near = [config for config, speed in self.seen.items() if speed >= most]
        best = min(near, key=lambda config: len(config.changes_from(OWN)))
        speeds = make_speeds(self.seen, self.noise) if len(self.seen) > 1 else None
        return Field(self.records, speeds, share_left, best=best)

    @property
    def configs(self) -> list[Config]:
        return [record.config for record in self.records[1:]]

    def reached(self) -> float:
        """Return the speed of the best config that was chosen, relative to the best of all."""
        best, found = (
            max(s for c in configs if not isinstance(s := self.speed(c), Ending))
            for configs in (configs_of(SPACE, OWN), [OWN, *self.configs])
        )
        return found / best


PROGRAMS: dict[str, Speed] = {
    "three knobs help": formula(
        workers={2: 1.3}, precision={"bf16": 1.3}, batch_size={128: 1.1, 256: 1.25}
    ),
    "the batch alone helps": formula(
        batch_size={128: 1.3, 256: 1.6},
        precision={"bf16": 0.6},
        workers={1: 0.9, 2: 0.8},
        threads={1: 0.6},
    ),
    "two knobs help only together": lambda config: {
        (2, 2): 1.01,
        (0, 1): 0.8,
        (2, 1): 1.42,
    }.get((int(config["workers"]), int(config["threads"])), 0.9),
    "nothing helps": formula(precision={"bf16": 0.7}, workers={1: 0.9, 2: 0.9}, threads={1: 0.7}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_best_is_found_within_two_dozen_configs_whatever_helps(name: str) -> None:
    """In the mean over seeds; of 432 configs."""
    reached = []
    for seed in range(5):
        course = Course(PROGRAMS[name], seed=seed)
        course.run(24)
        reached.append(course.reached())
    assert sum(reached) / len(reached) > 0.97, reached


def test_every_change_at_once_comes_first_then_its_neighbours_and_then_what_promises_most() -> None:
    course = Course(PROGRAMS["three knobs help"], all_in=FOUR)
    configs = course.run(8)
    assert configs[0] == FOUR
    assert course.records[1].why == ALL_IN
    assert set(configs[1:5]) == {
        FOUR.replace(**{knob: OWN[knob]}) for knob in FOUR.changes_from(OWN)
    }
    assert all(record.why.startswith("without") for record in course.records[2:6])
    assert {record.why for record in course.records[6:]} == {PROMISES}


def test_changes_that_do_not_fit_into_memory_at_once_are_tried_with_a_smaller_batch() -> None:
    """A baseline of 7 GiB may leave no room for four times its batch, but does for twice of it."""
    all_in = OWN.replace(memory_format="channels_last", batch_size=256)
    for peak_gib, batch_size in ((3, 256), (7, 128), (9, 64)):
        course = Course(formula(), all_in=all_in, memory_bytes=16.0 * GIB)
        course.records[0] = seen(64, peak_gib, OWN)
        first, *others = course.run(5)
        assert first == all_in.replace(batch_size=batch_size)
        assert first == all_in or all_in not in others


def test_what_failed_rules_out_what_must_fail_as_well() -> None:
    def speed(config: Config) -> float | Ending:
        if int(config["batch_size"]) >= 128:
            return Ending(Outcome.OUT_OF_MEMORY, "the memory is full")
        if config["precision"] == "bf16":
            return Ending(Outcome.CRASHED, "ValueError: no")
        return 1.0

    configs = Course(speed).run(40)
    too_large = [c for c in configs if int(c["batch_size"]) >= 128]
    # A smaller batch or another precision may fit where it did not
    assert len({(c["batch_size"], c["precision"]) for c in too_large}) == len(too_large)
    assert len([c for c in configs if c["precision"] == "bf16"]) <= len(too_large) + 2


def test_larger_batches_with_fewer_of_them_to_a_step_are_neighbours() -> None:
    """Neither change alone keeps the samples of a step."""
    space = replace(
        SPACE,
        domains={"batch_size": Domain((64, 128)), "accumulation_steps": Domain((1, 2))},
        baseline=Config({"batch_size": 64, "accumulation_steps": 2}),
        max_global_batch=128,
    )
    choice = Chooser(space, 0).choose(Field([make_record(space.baseline, 1.0)]))
    assert choice is not None
    assert choice.config == Config({"batch_size": 128, "accumulation_steps": 1})


def compiles(configs: Sequence[Config]) -> list[int]:
    """Return at which places a config compiles."""
    return [place for place, config in enumerate(configs) if config["compile"] == "default"]


def test_what_takes_long_to_take_its_seat_comes_after_what_promises_as_much_per_second() -> None:
    speed = formula(compile={"default": 1.5}, precision={"bf16": 1.2})
    dear = Course(speed, cost_s=lambda c: 1.0 if c["compile"] == "off" else 25.0).run(60)
    cheap = Course(speed).run(60)
    assert compiles(dear)[0] > compiles(cheap)[0]
    no_time = Course(speed, cost_s=lambda c: 1.0 if c["compile"] == "off" else math.inf).run(60)
    assert not compiles(no_time)


ONE = Config({"precision": "fp32"})
FULL = Ending(Outcome.OUT_OF_MEMORY, "the memory is full")


def seen(
    batch_size: int, peak_gib: float | Ending, config: Config = ONE, kept: float = 1.04
) -> TrialRecord:
    """Return the record of a config that allocates this much, and reserves so much more."""
    config = config.replace(batch_size=batch_size)
    if isinstance(peak_gib, Ending):
        return make_record(config, peak_gib)
    sizes = round(peak_gib * GIB), round(kept * peak_gib * GIB)
    measurement = make_measurement(memory=Memory(*sizes))
    return replace(make_record(config, 1.0), measurement=measurement)


def on_host(batch_size: int, peak_gib: float) -> TrialRecord:
    """Return the record of a config on the CPU."""
    record = seen(batch_size, peak_gib)
    memory = Memory(host_bytes=round(peak_gib * GIB))
    return replace(record, measurement=make_measurement(memory=memory))


def fits(records: list[TrialRecord], batch_size: int, limit_gib: float = 16.0) -> bool:
    config = Config({"batch_size": batch_size, "precision": "fp32"})
    return Forecast(records, limit_gib * GIB).fits(config)


def test_what_fits_into_the_hosts_memory_is_told_by_a_try_up_to_twice_the_largest_batch() -> None:
    """Imports and data do not grow with the batch; a process that exceeds it harms others."""
    for records, batch_size, wanted in (
        ([on_host(64, 9.0)], 128, True),
        ([on_host(64, 9.0)], 256, False),
        ([on_host(64, 9.0), on_host(128, 9.5)], 256, True),
        ([on_host(64, 9.0), on_host(128, 14.0)], 256, False),
        ([on_host(64, 3.0), on_host(128, 2.9)], 512, True),
        ([on_host(64, 3.0), on_host(128, 2.9)], 4096, False),
        ([seen(8, 10.0)], 16, True),  # of a GPU, between which and 8 there is no step
    ):
        assert fits(records, batch_size) is wanted, (records, batch_size)


def test_the_largest_batch_between_two_sizes_is_tried_once_and_another_after_an_out_of_memory() -> (
    None
):
    """Of 16 GiB, 14.7 are used: 4 GiB and 1 for 16 samples are 171, in steps of 8."""
    two, bf16 = [seen(64, 8.0), seen(128, 12.0)], Config({"precision": "bf16"})
    for records, size in (
        ([], None),
        ([seen(64, 8.0)], 112),  # as if all of it grew with the batch
        ([seen(64, 4.0)], None),  # the next size fits
        (two, 168),
        ([*two, seen(256, FULL)], 168),
        ([*two, seen(256, FULL, bf16)], 168),
        ([*two, seen(168, 14.5)], None),
        ([*two, seen(168, FULL)], 144),
        ([*two, seen(168, FULL), seen(144, 13.0)], 152),
        ([*two, seen(168, FULL), seen(144, FULL)], 136),
        ([*two, seen(168, FULL), seen(144, FULL), seen(136, FULL)], None),
        ([seen(64, 3.0), seen(128, 3.1), seen(256, FULL)], 192),  # the line was wrong
        ([seen(512, 8.0)], None),
        ([seen(64, 8.0), seen(128, 12.0, kept=1.2)], 136),  # of 12.8 GiB: it reserves 15.4
    ):
        found = Forecast(records, 16.0 * GIB).between(ONE, (64, 128, 256, 512))
        assert found == size, records
    assert Forecast([on_host(64, 8.0)], 16.0 * GIB).between(ONE, (64, 128)) is None
