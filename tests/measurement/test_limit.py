"""Limit: it is reached only where what is left to gain was measured, and is little."""

from dataclasses import replace

import pytest

from autotune.measurement.examination import Operators, StepBreakdown, StepParts
from autotune.measurement.interval import Interval
from autotune.measurement.limit import Limit, data_gain, limit_of

FULL = Limit(
    {"compute": 0.94, "optimizer": 0.04, "data": 0.01, "Python": 0.01},
    0.71,
    {"data": 1.01, "Python": 1.01, "optimizer": 1.04},
    compile_was_measured=True,
)
COMPUTES = StepParts(0.001, 0.001, 0.094, 0.003, 0.0005, 0.0005, 10)
STEP_S = COMPUTES.step_s


def test_the_limit_is_reached_by_the_peak_or_by_computing_alone_and_never_with_more_to_gain() -> (
    None
):
    for changes, is_reached in (
        ({}, True),
        ({"compile_was_measured": False}, True),
        ({"peak_share": 0.5}, True),
        ({"peak_share": None}, True),
        ({"peak_share": None, "compile_was_measured": False}, False),
        ({"peak_share": 0.5, "compile_was_measured": False}, False),
        ({"bounds": {**FULL.bounds, "data": 1.06}}, False),
        ({"peak_share": None, "shares": {**FULL.shares, "compute": 0.89}}, False),
    ):
        assert replace(FULL, **changes).is_reached is is_reached, changes


def test_the_parts_of_a_step_add_up_and_each_bound_follows_from_its_own() -> None:
    breakdown = StepBreakdown(COMPUTES)
    found = limit_of(breakdown, 1.0, None, compile_was_measured=True)
    assert found is not None
    assert found.is_reached
    assert found.shares == pytest.approx(
        {"compute": 0.94, "optimizer": 0.03, "data": 0.02, "Python": 0.01}
    )
    assert found.bounds == pytest.approx(
        {"optimizer": 1 / 0.97, "data": 1 / 0.98, "Python": 1 / 0.99}
    )
    waits = limit_of(breakdown, 1.3, None, compile_was_measured=True)
    assert waits is not None
    assert waits.bounds["data"] == 1.3, "what was measured counts more than the share"
    assert not waits.is_reached
    assert limit_of(StepBreakdown(), 1.0, None, compile_was_measured=True) is None


def test_calling_small_operators_is_no_computing() -> None:
    for calls, computes in ((10, 0.94), (600, 0.35), (5000, 0.0)):
        operators = Operators(calls, 1e-4, STEP_S)
        found = limit_of(
            StepBreakdown(COMPUTES, operators=operators), 1.0, 0.9, compile_was_measured=True
        )
        assert found is not None
        assert found.shares["compute"] == pytest.approx(computes)
        assert sum(found.shares.values()) == pytest.approx(1.0)
        assert found.is_reached is (calls == 10)


def test_ready_data_gain_no_more_than_the_waiting_of_a_program_without_workers() -> None:
    ready = StepBreakdown(synthetic_data_throughput=Interval(200.0, 190.0, 210.0))
    for has_workers, gain in ((True, 2.0), (False, 1.25)):
        assert data_gain(ready, 100.0, 0.2, has_workers=has_workers) == pytest.approx(gain)
    assert data_gain(ready, 400.0, 0.2, has_workers=True) == 1.0
    assert data_gain(StepBreakdown(), 100.0, 0.2, has_workers=True) == 1.0
