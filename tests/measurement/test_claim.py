"""What processes may claim together: noise seldom, true gains soon."""

from __future__ import annotations

import math

import pytest

from autotune.measurement.claim import APART_LEAST, Claim, claim
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
