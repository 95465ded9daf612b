"""What processes may claim together: noise seldom, true gains soon."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.measurement.claim import APART_LEAST, Claim, claim, differing
from autotune.measurement.interval import LogRatio
from autotune.measurement.rounds import TAU

ERROR = 0.01


def of(*speedups: float, tau: float = TAU, apart: bool = False) -> Claim:
    """Return what processes with these speedups say."""
    return claim([[LogRatio(math.log(one), ERROR) for one in speedups]], tau=tau, apart=apart)


def test_one_process_alone_claims_nothing_however_fast_it_was() -> None:
    alone = of(3.0)
    assert alone.chance > 0.99
    assert not any((alone.is_enough, alone.is_faster, alone.is_over))
    assert of(3.0, 3.0).is_faster
    assert of(3.0, 3.0).is_over
    with pytest.raises(ValueError, match="at least one process"):
        claim([])


def test_configs_that_share_no_process_need_three_pairs_and_a_gain_beyond_their_noise() -> None:
    assert not of(2.0, 2.0, apart=True).is_enough
    assert of(2.0, 2.0, 2.0, apart=True).is_faster
    slight = math.exp(APART_LEAST) - 0.02
    assert of(slight, slight, slight).is_faster
    assert not of(*[slight] * 20, apart=True).is_faster


def by_machine(*machines: tuple[float, ...]) -> list[list[LogRatio]]:
    """Return what processes with these speedups say, by machine."""
    return [[LogRatio(math.log(one), ERROR) for one in processes] for processes in machines]


def test_a_claim_for_another_machine_needs_two_of_them_with_two_processes_each() -> None:
    assert claim(by_machine((1.5, 1.5), (1.5, 1.5))).is_faster
    assert not claim(by_machine((1.5, 1.5, 1.5), (1.5,))).is_enough
    assert not claim(by_machine((1.5,), (1.5,), (1.5,), (1.5,))).is_enough
    assert claim(by_machine((1.5, 1.5), (1.5,), (1.5, 1.5))).machines == 3
    assert claim(by_machine((1.5, 1.5), ())) == of(1.5, 1.5), "without a process it says nothing"


def test_another_machine_is_less_sure_than_those_that_were_seen_however_many_they_are() -> None:
    seen = claim([[ratio for one in by_machine(*[(1.1, 1.1)] * 8) for ratio in one]])
    another = claim(by_machine(*[(1.1, 1.1)] * 8))
    apart = claim(by_machine(*[(1.06, 1.06), (1.14, 1.14)] * 4))
    assert another.speedup.estimate == pytest.approx(1.1, rel=0.003)
    assert seen.speedup.half_width_pct < another.speedup.half_width_pct
    assert 2 * another.speedup.half_width_pct < apart.speedup.half_width_pct


@pytest.mark.parametrize("count", [2, 4])
def test_the_interval_holds_the_ratio_of_a_machine_that_was_not_seen(count: int) -> None:
    rng, tau, held, claimed, times = np.random.default_rng(count), 0.013, 0, 0, 150
    for n in range(times):
        omega = 0.03 * (n % 4) / 3
        machines = [
            [LogRatio(at + math.hypot(tau, ERROR) * rng.standard_normal(), ERROR) for _ in range(2)]
            for at in omega * rng.standard_normal(count)
        ]
        found = claim(machines)
        held += found.speedup.low <= math.exp(omega * rng.standard_normal()) <= found.speedup.high
        claimed += found.is_faster
    assert held >= 0.94 * times
    assert claimed <= 0.025 * times


def test_machines_that_surely_differ_are_told_from_noise() -> None:
    assert not differing(by_machine((1.1, 1.1, 1.1)))
    assert not differing(by_machine((1.1, 1.11, 1.1), (1.14, 1.15, 1.14)))
    assert not differing(by_machine((1.1,), (1.21,))), "one process each"
    assert differing(by_machine((1.1, 1.1, 1.1), (1.25, 1.26, 1.25), (1.1, 1.11)))


@pytest.mark.parametrize(("gap", "least", "most"), [(0.0, 0.0, 0.025), (0.1, 0.6, 1.0)])
def test_equal_machines_are_not_told_apart_and_unequal_ones_are(
    gap: float, least: float, most: float
) -> None:
    rng, found, times = np.random.default_rng(1), 0, 100
    for _ in range(times):
        machines = [
            [
                LogRatio(log + math.hypot(0.013, ERROR) * rng.standard_normal(), ERROR)
                for _ in range(3)
            ]
            for log in (0.0, 0.0, math.log1p(gap))
        ]
        found += differing(machines)
    assert least <= found / times <= most
