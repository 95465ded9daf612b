from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.rounds import Played, speedup


def test_a_speedup_is_the_ratio_of_totals_whatever_the_rounds_had_in_common() -> None:
    paces = (1.0, 3.0, 0.5, 2.0)
    rounds = [(Played(0.1 * pace, 32), Played(0.2 * pace, 32)) for pace in paces]

    found = speedup(rounds)

    assert found.value == pytest.approx(math.log(2))
    assert found.error == pytest.approx(0.0, abs=1e-12)


def test_batches_that_come_in_bursts_do_not_make_a_config_fast() -> None:
    # every fourth step waits for a worker: 31 of 40 ms; a mean of logarithms would say 2.7x
    bursts = [Played(0.003 if n % 4 else 0.031, 8) for n in range(400)]
    rounds = [(turn, Played(0.010, 8)) for turn in bursts]

    assert speedup(rounds).value == pytest.approx(0.0, abs=1e-9)


def test_the_error_holds_for_noise_that_is_common_and_noise_that_is_not() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        common = np.exp(0.2 * rng.standard_normal(100))
        own = np.exp(0.1 * rng.standard_normal((100, 2)))
        rounds = [
            (Played(0.1 * c * a, 1), Played(0.12 * c * b, 1))
            for c, (a, b) in zip(common, own, strict=True)
        ]
        found = speedup(rounds)
        held += abs(found.value - math.log(1.2)) <= 1.96 * found.error
    assert 0.92 <= held / 400 <= 0.98
