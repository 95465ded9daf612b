"""Measurements: blocks, intervals, and what follows from a window of blocks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from autotune.measurement.block import Block
from autotune.measurement.interference import Interference
from autotune.measurement.interval import Interval
from autotune.measurement.measurement import Measurement
from autotune.measurement.memory import Memory
from autotune.measurement.step_breakdown import StepParts

BUSY = Interference(foreign_share=0.5)
QUOTA = Interference(throttled_share=0.5)


def window(*blocks: Block) -> Measurement:
    return Measurement(Interval(100.0, 90.0, 110.0), blocks, 1.0, "steady", "narrow")


def test_a_block_counts_samples_per_second_with_the_waiting_inside() -> None:
    assert Block(samples=50, steps=2, seconds=0.5, wait_s=0.4).samples_per_s == pytest.approx(100)


@pytest.mark.parametrize(
    ("estimate", "low", "high"),
    [(1.0, 1.1, 1.2), (1.0, 0.8, 0.9), (1.0, 1.1, 0.9), (math.nan, 0.9, 1.1), (1.0, math.nan, 2.0)],
)
def test_an_interval_that_does_not_enclose_its_estimate_cannot_be_built(
    estimate: float, low: float, high: float
) -> None:
    with pytest.raises(ValueError, match="encloses its estimate"):
        Interval(estimate, low, high)


def test_an_interval_may_be_a_point() -> None:
    assert Interval(2.0, 2.0, 2.0).half_width_pct == 0


def test_half_the_width_is_in_percent_of_the_estimate() -> None:
    assert Interval(200.0, 190.0, 230.0).half_width_pct == pytest.approx(10)


def test_an_interval_reads_as_estimate_and_bounds() -> None:
    assert str(Interval(1.234567, 1.1, 1.4)) == "1.23 [1.1, 1.4]"


def test_wait_share_and_step_time_are_taken_over_the_whole_window() -> None:
    measurement = window(Block(64, 1, 1.0, 0.5), Block(192, 3, 3.0, 0.3))
    assert measurement.wait_share == pytest.approx(0.2)
    assert measurement.step_s == pytest.approx(1.0)


def test_what_nothing_reports_is_none_and_not_zero() -> None:
    measurement = window(Block(64, 1, 1.0, 0.5))
    assert measurement.memory == Memory(None, None, None, None)
    assert measurement.edge_s is None
    assert measurement.samples_per_epoch is None


# --- tokens and energy ----------------------------------------------------------------------------


def test_tokens_per_second_follow_the_samples_per_second_and_their_interval() -> None:
    tokens = window(Block(8, 1, 0.1, 0.0, tokens=800), Block(24, 3, 0.3, 0.0, tokens=4000))
    assert tokens.tokens_per_s == Interval(15_000.0, 13_500.0, 16_500.0)  # 150 per sample


def test_a_model_whose_input_is_no_text_has_no_tokens_per_second() -> None:
    assert window(Block(8, 1, 0.1, 0.0)).tokens_per_s is None


def test_energy_per_sample_is_power_over_throughput() -> None:
    measurement = replace(window(Block(64, 1, 1.0, 0.5)), power_w=250.0)
    assert measurement.joules_per_sample == pytest.approx(2.5)


def test_without_a_power_counter_energy_per_sample_is_unknown() -> None:
    assert window(Block(64, 1, 1.0, 0.5)).joules_per_sample is None


# --- doubts ---------------------------------------------------------------------------------------


def test_a_clean_window_raises_no_doubt() -> None:
    clean = Block(64, 1, 0.1, 0.0, interference=Interference(0.01, 0.0, 0.02, 0.0, 3.0))
    assert replace(window(clean, clean), drained_share=0.02).warnings == ()


def test_disturbed_blocks_are_counted_and_each_reason_is_said_once() -> None:
    blocks = [Block(64, 1, 0.1, 0.0, interference=i) for i in (BUSY, None, QUOTA, BUSY)]
    measurement = window(*blocks)
    assert measurement.disturbed_share == pytest.approx(0.75)
    (sentence,) = measurement.warnings
    assert sentence == (
        "75% of the blocks were disturbed: other processes used the CPU, the container's CPU quota "
        "was used up. The interval is wider because of that; close other programs and measure "
        "again."
    )


@pytest.mark.parametrize(
    ("change", "beginning"),
    [
        (
            {"warmup_reason": "cut after 30 s: speed still changing"},
            "The program was not steady yet: the warm-up was cut after 30 s: speed still changing.",
        ),
        (
            {"drained_share": 0.4},
            "Up to 40% of the samples of a measurement were loaded before it began, so ",
        ),
        (
            {"memory": Memory(alloc_retries=7)},
            "The GPU's memory is nearly full: torch emptied its cache 7 times. ",
        ),
    ],
    ids=["warm-up cut", "drained", "nearly out of memory"],
)
def test_what_makes_a_window_unsure_is_said_in_a_sentence(
    change: dict[str, Any], beginning: str
) -> None:
    (sentence,) = replace(window(Block(64, 1, 1.0, 0.5)), **change).warnings
    assert sentence.startswith(beginning)
    assert sentence.endswith(".")


def test_all_doubts_are_said_together() -> None:
    measurement = replace(
        window(Block(64, 1, 1.0, 0.5, interference=BUSY)),
        warmup_reason="cut after 30 s: speed still changing",
        drained_share=0.5,
        memory=Memory(alloc_retries=1),
    )
    assert len(measurement.warnings) == 4


# --- the parts of a step --------------------------------------------------------------------------


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
