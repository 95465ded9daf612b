"""What processes may claim together: noise seldom, true gains soon."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.measurement.claim import APART_LEAST, Claim, claim
from autotune.measurement.interval import LogRatio
from autotune.measurement.rounds import TAU

ERROR = 0.01
MOST_PROCESSES = 5


def of(*speedups: float, tau: float = TAU, apart: bool = False) -> Claim:
    """Return what processes with these speedups say."""
    return claim([LogRatio(math.log(one), ERROR) for one in speedups], tau=tau, apart=apart)


@pytest.mark.parametrize(("truth", "claimed"), [(1.0, (0.0, 0.05)), (1.06, (0.9, 1.0))])
def test_searches_claim_noise_seldom_and_gains_soon_and_their_intervals_hold(
    truth: float, claimed: tuple[float, float]
) -> None:
    """Each search stops as soon as its claim is over; its processes differ as they may."""
    rng, searches = np.random.default_rng(0), 60
    held = faster = 0
    for _ in range(searches):
        tau, ratios = abs(rng.normal(0, TAU)), list[LogRatio]()
        while len(ratios) < MOST_PROCESSES:
            noise = rng.normal(0, math.hypot(tau, ERROR))
            ratios.append(LogRatio(math.log(truth) + noise, ERROR))
            found = claim(ratios)
            if found.is_over:
                break
        held += found.speedup.low <= truth <= found.speedup.high
        faster += found.is_faster
    assert held / searches >= 0.9
    assert claimed[0] <= faster / searches <= claimed[1]


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
