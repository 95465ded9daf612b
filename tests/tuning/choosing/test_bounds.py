"""What a knob can gain at most, from the share of the time that it works on."""

from __future__ import annotations

import pytest

from autotune.measurement.examination import StepBreakdown, StepParts
from autotune.tuning.choosing.bounds import LOADING, MARGIN, Share, shares
from tests.made import make_interval, make_measurement


def test_an_optimizer_of_two_percent_cannot_gain_more_than_that_times_the_margin() -> None:
    split = StepParts(0.0, 0.0, 0.098, 0.002, 0.0, 0.0, 10)
    found = shares(StepBreakdown(split), make_measurement(wait_share=0.0))
    optimizer = found["optimizer"]
    assert optimizer.most() == pytest.approx(1 / (1 - 0.02 * MARGIN))
    assert not found.keys() & {"batch_size", "precision", "threads", "memory_format"}
    assert not found.keys() & set(LOADING), "nobody measured how fast it is with ready data"

    share = Share(0.1, "the optimizer")  # the rest of the step gets faster
    assert share.most(2.0) == pytest.approx(1 / (1 - 0.1 * MARGIN * 2))
    assert share.most(0.5) == share.most(1.0), "a slower config does not lower it"
    assert share.most(1e9) < 11, "it stays finite"


def test_loading_is_bounded_by_waiting_and_by_the_speed_with_ready_data() -> None:
    split = StepParts(0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 10)
    for wait, ready, share in ((0.0, 1000.0, 0.0), (0.3, 1000.0, 0.3), (0.0, 2000.0, 0.5)):
        breakdown = StepBreakdown(split, synthetic_data_throughput=make_interval(ready, 0.0))
        measured = make_measurement(1000.0, wait_share=wait)
        found = shares(breakdown, measured)["workers"]
        assert found.share == pytest.approx(share, abs=0.02)
