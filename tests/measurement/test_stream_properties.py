"""What holds for the stream model whatever was seen: hypothesis looks for visits that break it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.measurement.pilot import Pace
from autotune.measurement.stream import StreamModel
from autotune.measurement.visit import Visit

Seen = list[tuple[str, Visit]]
CONFIGS = ("baseline", "a", "b")
SHOWN = st.builds(Pace, st.floats(-1.0, 1.0), st.floats(-1.0, 1.0))
VISITS = st.builds(
    Visit,
    process=st.integers(1, 3),
    at_s=st.floats(0.0, 1e5),
    log_rate=st.floats(-10.0, 15.0),
    own_spread=st.floats(0.0, 0.5),
    pace=st.none() | SHOWN,
)
SEEN = st.lists(st.tuples(st.sampled_from(CONFIGS), VISITS), min_size=1, max_size=12)
few = settings(max_examples=40, deadline=None, derandomize=True, database=None)


@few
@given(SEEN)
def test_any_visits_give_an_interval_that_is_finite_and_holds_its_estimate(seen: Seen) -> None:
    model = StreamModel(seen)
    visited = {config for config, _ in seen}
    for config in CONFIGS:
        found, rate = model.speedup(config, "baseline"), model.rate(config)
        assert (rate is not None) is (config in visited)
        assert (found is not None) is {config, "baseline"}.issubset(visited)
        for interval in (found, rate):
            if interval is not None:
                assert 0.0 < interval.low <= interval.estimate <= interval.high < math.inf
    assert all(math.isfinite(slope) for slope in model.slopes)


@few
@given(SEEN, st.randoms(use_true_random=False), st.floats(-3.0, 3.0), st.floats(0.0, 1e6))
def test_neither_order_nor_units_nor_the_clock_matter(
    seen: Seen, random: object, units: float, later_s: float
) -> None:
    same = [
        (config, replace(v, log_rate=v.log_rate + units, at_s=v.at_s + later_s))
        for config, v in seen
    ]
    random.shuffle(same)  # type: ignore[attr-defined]
    before, after = StreamModel(seen), StreamModel(same)
    for config in CONFIGS[1:]:
        one, other = (model.speedup(config, "baseline") for model in (before, after))
        assert (one is None) is (other is None)
        if one is not None and other is not None:
            for name in ("estimate", "low", "high"):
                assert math.log(getattr(other, name)) == pytest.approx(
                    math.log(getattr(one, name)), rel=1e-3, abs=1e-3
                )


@few
@given(st.floats(0.2, 5.0), st.integers(2, 6), st.floats(0.0, 0.05))
def test_a_speedup_lies_between_none_and_what_the_visits_show(
    speedup: float, visits: int, own_spread: float
) -> None:
    """It is drawn towards 1, the less the more often both were visited."""
    seen = []
    for number in range(visits):
        seen.append(("baseline", Visit(1, 2.0 * number, 7.0, own_spread)))
        seen.append(("a", Visit(1, 2.0 * number + 1, 7.0 + math.log(speedup), own_spread)))
    found = StreamModel(seen).speedup("a", "baseline")
    assert found is not None
    least, most = sorted((0.0, math.log(speedup)))
    assert least - 1e-9 <= math.log(found.estimate) <= most + 1e-9
