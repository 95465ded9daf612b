"""Measurements: blocks, intervals, and what follows from a window of blocks."""

from __future__ import annotations

import math

import pytest

from autotune.measurement import Block, Interval, Measurement, Memory


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
