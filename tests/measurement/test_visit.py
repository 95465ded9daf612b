"""What one visit of a config says about its speed."""

from __future__ import annotations

import math

import pytest

from autotune.measurement.interval import Interval
from autotune.measurement.visit import Visit


def test_half_of_what_may_have_come_out_of_full_buffers_is_taken_off() -> None:
    worth = Interval(1000.0, 700.0, 1100.0)
    plain, drained = Visit.of(worth, 1, 0.0), Visit.of(worth, 1, 0.0, drained_share=0.2)
    assert math.exp(plain.log_rate) == pytest.approx(1000.0)
    assert math.exp(drained.log_rate) == pytest.approx(900.0)
    assert drained.own_spread == plain.own_spread == pytest.approx(math.log(11 / 7) / 3.92)
