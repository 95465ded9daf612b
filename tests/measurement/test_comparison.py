from __future__ import annotations

import math
import random

import pytest

from autotune.measurement.comparison import Drift, is_decided, speedup
from autotune.measurement.interval import Interval, Turn
from tests.made import make_interval

NO_DRIFT = Drift(0.0, 10**6)


def exact(rate: float) -> Interval:
    return Interval(rate, rate, rate)


# --- one turn without drift: the errors of both windows -------------------------------------------


def test_a_speedup_carries_the_errors_of_both_windows() -> None:
    turn = Turn(Interval(1500, 1470, 1530), Interval(1000, 970, 1030))
    found = speedup([turn], NO_DRIFT)
    assert found.estimate == pytest.approx(1.5)
    assert found.half_width_pct == pytest.approx(math.hypot(2, 3), rel=0.02)


def test_a_speedup_of_exact_windows_is_exact() -> None:
    found = speedup([Turn(exact(900), exact(1000))], NO_DRIFT)
    assert found.low == pytest.approx(0.9)
    assert found.high == pytest.approx(0.9)


def test_a_speedup_read_the_other_way_round_is_the_reciprocal() -> None:
    one, other = Interval(1500, 1400, 1530), Interval(1000, 970, 1080)
    there = speedup([Turn(one, other)], Drift())
    back = speedup([Turn(other, one)], Drift())
    assert there.estimate * back.estimate == pytest.approx(1)
    assert there.low * back.high == pytest.approx(1)
    assert there.high * back.low == pytest.approx(1)


def test_a_window_of_unequal_arms_widens_the_speedup_on_the_matching_side() -> None:
    found = speedup([Turn(Interval(1000, 900, 1000), exact(1000))], NO_DRIFT)
    assert found.low == pytest.approx(0.9)
    assert found.high == pytest.approx(1.0)
    found = speedup([Turn(exact(1000), Interval(1000, 900, 1000))], NO_DRIFT)
    assert found.low == pytest.approx(1.0)
    assert found.high == pytest.approx(1 / 0.9)


def test_more_turns_give_their_geometric_mean_and_a_narrower_interval() -> None:
    window = make_interval(1000.0, 4.0)
    one = speedup([Turn(window, window)], Drift())
    turns = [Turn(make_interval(1000.0 * r, 4.0), window) for r in (1.1, 1.2, 1.3, 1.2)]
    four = speedup(turns, Drift())
    assert four.estimate == pytest.approx((1.1 * 1.2 * 1.3 * 1.2) ** 0.25)
    assert four.half_width_pct == pytest.approx(one.half_width_pct / 2, rel=0.03)


# --- drift ----------------------------------------------------------------------------------------


def test_before_anything_is_seen_some_drift_is_assumed() -> None:
    found = speedup([Turn(exact(1000), exact(1000))], Drift())
    assert found.half_width_pct == pytest.approx(10.8, abs=0.3)  # t with 2 degrees, times 2.5 %


def test_a_quiet_machine_narrows_what_was_assumed_and_a_noisy_one_widens_it() -> None:
    quiet = noisy = assumed = Drift()
    for number in range(20):
        quiet = quiet.having_seen(exact(1000), exact(1001))
        noisy = noisy.having_seen(exact(1000), exact(1080 if number % 2 else 930))
    assert quiet.reach(1) < 0.2 * assumed.reach(1)
    assert noisy.reach(1) > 2 * quiet.reach(1)
    assert noisy.spread > 2 * assumed.spread


def test_what_the_windows_themselves_know_of_is_not_counted_twice() -> None:
    one, other = make_interval(1000.0, 10.0), make_interval(1050.0, 10.0)
    drift = Drift().having_seen(one, other)
    assert drift.squares == Drift().squares
    assert drift.weight == 3


@pytest.mark.parametrize("apart", [0.0, 0.08])
def test_turns_of_one_comparison_tell_of_drift_though_their_ratio_is_unknown(apart: float) -> None:
    turns = [Turn(exact(1500), exact(1000)), Turn(exact(1500 * (1 + apart)), exact(1000))]
    drift = Drift().having_compared(turns)
    assert drift.squares - Drift().squares == pytest.approx(math.log(1 + apart) ** 2 / 2)


def test_one_turn_tells_nothing_of_drift() -> None:
    assert Drift().having_compared([Turn(exact(2), exact(1))]) == Drift()


@pytest.mark.parametrize("spread", [0.002, 0.02, 0.05, 0.1])
@pytest.mark.parametrize("noise", [0.003, 0.02])
def test_on_machines_that_drift_little_and_much_few_equal_configs_seem_to_differ(
    spread: float, noise: float
) -> None:
    """Searches of 30 comparisons, with a new reference before each second one."""
    rng = random.Random(1)
    false = total = 0

    def window() -> Interval:
        level = math.exp(rng.gauss(0, spread / math.sqrt(2)))
        return make_interval(1000 * level * math.exp(rng.gauss(0, noise)), 196 * noise)

    for _ in range(100):
        drift, reference = Drift(), window()
        for number in range(30):
            if number % 2 == 0:
                renewed = window()
                drift, reference = drift.having_seen(reference, renewed), renewed
            found = speedup([Turn(window(), reference)], drift)
            false += not found.low <= 1 <= found.high
            total += 1
    assert false / total < 0.1


# --- when a comparison may end --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "incumbent", "needed"),
    [
        (Interval(1.0, 0.9, 1.1), 1.0, None),
        (Interval(1.0, 0.9, 1.1), 1.2, 1),  # surely slower than the best
        (Interval(1.5, 1.3, 1.7), 1.2, 2),  # surely faster
        (Interval(1.5, 1.3, 1.7), 1.6, None),
        (Interval(1.0, 0.98, 1.02), 1.0, 2),  # narrow enough
    ],
)
def test_a_comparison_ends_when_it_is_decided_or_narrow(
    found: Interval, incumbent: float, needed: int | None
) -> None:
    turns = next((n for n in (1, 2, 3) if is_decided(found, n, incumbent)), None)
    assert turns == needed
