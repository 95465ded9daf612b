"""Measurements: what turns of one config show, and what makes them doubtful."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autotune.measurement.examination import StepParts
from autotune.measurement.interval import Interval
from autotune.measurement.measurement import Measurement, disturbance_of, warnings_of
from autotune.measurement.readings import Compilation, Interference, Memory
from autotune.measurement.turn import Taken, Turn
from tests.made import make_measurement

BUSY = Interference(foreign_share=0.5)
QUOTA = Interference(throttled_share=0.5)
TURNS = (
    Turn(0, (1.0, 1.0), (64, 64), 0.5, wait_s=0.5, tokens=1280, loss=2.0),
    Turn(0, (9.0, 0.5, 0.5), (99, 64, 32), 0.5, (0,), wait_s=2.0, tokens=1950, loss=1.0),
)


def test_an_interval_that_does_not_enclose_its_estimate_cannot_be_built() -> None:
    for low, high in ((1.1, 1.2), (0.8, 0.9), (1.1, 0.9), (math.nan, 2.0)):
        with pytest.raises(ValueError, match="encloses its estimate"):
            Interval(1.0, low, high)
    with pytest.raises(ValueError, match="encloses its estimate"):
        Interval(math.nan, 0.9, 1.1)


def test_steps_that_count_are_taken_together_and_switches_and_disturbed_steps_left_out() -> None:
    measurement = Measurement.of(TURNS, Taken(TURNS, samples_per_epoch=640))
    assert measurement.throughput.estimate == pytest.approx(224 / 3.0)
    assert measurement.throughput.low < 224 / 3.0 < measurement.throughput.high
    assert (measurement.step_s, measurement.samples_per_step) == (0.75, 56.0)
    assert measurement.wait_share == pytest.approx((0.5 + 2.0 * 1.0 / 10.0) / 3.0)
    assert measurement.tokens_per_sample == pytest.approx(3230 / 323)
    assert measurement.samples_per_epoch == 640


def test_what_nothing_reports_is_none_and_not_zero() -> None:
    measurement = Measurement.of(TURNS[:1], Taken(TURNS[:1]))
    assert measurement.memory == Memory(None, None, None, None)
    assert measurement.samples_per_epoch is None
    assert measurement.joules_per_sample is None
    assert replace(measurement, tokens_per_sample=0.0).tokens_per_s is None
    assert not warnings_of([measurement])


def test_what_makes_a_measurement_unsure_is_said_in_a_sentence() -> None:
    for change, beginning in (
        ({"memory": Memory(alloc_retries=7)}, "The GPU's memory is nearly full: torch emptied its"),
        (
            {"compilation": Compilation(9.0, 8, 7, 0)},
            "torch.compile recompiled 7 times and",
        ),
    ):
        (sentence,) = warnings_of([make_measurement(**change)])
        assert sentence.startswith(beginning)
        assert sentence.endswith(".")


def test_of_several_processes_it_is_said_how_many_were_disturbed_and_each_reason_once() -> None:
    several = [make_measurement(interference=one) for one in (BUSY, None, QUOTA, BUSY)]
    assert [one.is_disturbed for one in several] == [True, False, True, True]
    assert [one.is_taken_from for one in several] == [True, False, False, True]
    reasons = "other programs used the CPU, the container's CPU quota was used up"
    assert disturbance_of(several) == f"{reasons} in 3 of 4 processes"
    assert disturbance_of(several[2:3]) == "the container's CPU quota was used up"
    assert not disturbance_of(several[1:2])


def test_the_parts_of_a_step_sum_to_the_step_and_the_launching_is_none_of_them() -> None:
    split = StepParts(0.001, 0.002, 0.04, 0.08, 0.1, 0.2, steps=10, launch_s=7.0)
    assert list(split.parts.items()) == [
        ("data wait", 0.001),
        ("host to device", 0.002),
        ("compute", 0.04),
        ("optimizer", 0.08),
        ("sync calls", 0.1),
        ("Python and launch", 0.2),
    ]
    assert split.step_s == pytest.approx(0.423)
