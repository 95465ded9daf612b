"""What several looks may claim: noise seldom, true gains soon, and the error is spent once."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from autotune.measurement.claim import (
    APART,
    LEAST_SHARE,
    MAX_LOOKS,
    Claim,
    apart,
    share_left,
    together,
)
from autotune.measurement.interval import Interval

SEARCHES = 600
FUTILE = 1.02
UNLIKELY = 0.05


@dataclass(frozen=True)
class Claims:
    """What many simulated searches said at the look at which each of them stopped."""

    truth: float
    found: Sequence[Interval]
    looks: Sequence[int]

    @property
    def faster(self) -> float:
        return sum(i.low > 1.0 for i in self.found) / len(self.found)

    @property
    def slower(self) -> float:
        return sum(i.high < 1.0 for i in self.found) / len(self.found)

    @property
    def coverage(self) -> float:
        return sum(i.low <= self.truth <= i.high for i in self.found) / len(self.found)


def search(
    truth: float, looks: Sequence[int], after: Callable[[random.Random, int], Claim]
) -> Claims:
    """Run searches that stop at the first look that decides."""
    found, stopped = [], []
    for seed in range(SEARCHES):
        rng = random.Random(seed)
        for look in looks:
            claim = after(rng, look)
            interval = claim.speedup
            if interval.low > 1.0 or interval.high < FUTILE or claim.chance < UNLIKELY:
                break
        found.append(interval)
        stopped.append(look)
    return Claims(truth, found, stopped)


def in_turns(
    truth: float, *, pair_noise: float, process_noise: float, heavy: bool = False
) -> Claims:
    """Two pairs of visits in each process; each process has a ratio of its own."""
    processes: list[list[float]] = []

    def noise(rng: random.Random) -> float:
        tail = 3.0 if heavy and rng.random() < 0.1 else 1.0
        return rng.gauss(0, pair_noise * tail)

    def one(rng: random.Random) -> list[float]:
        centre = math.log(truth) + rng.gauss(0, process_noise)
        return [math.exp(centre + noise(rng)) for _ in range(2)]

    def after(rng: random.Random, look: int) -> Claim:
        if look == 2:
            processes[:] = [one(rng)]
        processes.append(one(rng))
        return together(processes)

    return search(truth, range(2, MAX_LOOKS + 1), after)


def in_processes(truth: float, spread: float) -> Claims:
    """Processes of each side, as for configs that cannot share one."""
    sides: tuple[list[float], list[float]] = ([], [])

    def after(rng: random.Random, look: int) -> Claim:
        if look == min(APART):
            for side in sides:
                side.clear()
        for side, speed in zip(sides, (truth, 1.0), strict=True):
            side += [speed * math.exp(rng.gauss(0, spread)) for _ in range(look - len(side))]
        return apart(*sides)

    return search(truth, tuple(APART), after)


def test_equal_configs_are_seldom_called_faster_however_often_one_looks() -> None:
    for pair_noise in (0.02, 0.05, 0.1, 0.2):
        for process_noise in (0.0, 0.02):
            claims = in_turns(1.0, pair_noise=pair_noise, process_noise=process_noise)
            assert claims.faster <= 0.035, (pair_noise, process_noise)
            assert claims.slower <= 0.035
            assert claims.coverage >= 0.93


def test_processes_further_apart_than_assumed_make_few_false_claims() -> None:
    """The assumption is 3 %; what lies beyond it is seen only once there are several processes."""
    for pair_noise in (0.02, 0.05):
        claims = in_turns(1.0, pair_noise=pair_noise, process_noise=0.05)
        assert claims.faster <= 0.05
        assert claims.coverage >= 0.93


def test_heavy_tails_make_no_more_false_claims() -> None:
    claims = in_turns(1.0, pair_noise=0.05, process_noise=0.02, heavy=True)
    assert claims.faster <= 0.035


def test_a_gain_of_five_percent_is_found_on_a_quiet_machine() -> None:
    claims = in_turns(1.05, pair_noise=0.02, process_noise=0.01)
    assert claims.faster >= 0.95
    assert statistics.fmean(claims.looks) < 5


def test_a_gain_of_thirty_percent_is_found_by_two_processes() -> None:
    claims = in_turns(1.3, pair_noise=0.07, process_noise=0.02)
    assert claims.faster >= 0.98
    assert statistics.fmean(claims.looks) < 3
    assert claims.coverage >= 0.93


def test_processes_that_scatter_more_than_was_assumed_are_judged_by_their_scatter() -> None:
    agreeing = together([[1.19, 1.21], [1.19, 1.21], [1.19, 1.21]]).speedup
    scattered = together([[1.04, 1.06], [1.20, 1.20], [1.34, 1.36]]).speedup
    assert agreeing.low > 1.1
    assert scattered.low < 1.0


def test_processes_of_their_own_claim_as_seldom_at_each_spread() -> None:
    for spread in (0.02, 0.05, 0.1):
        claims = in_processes(1.0, spread)
        assert claims.faster <= 0.035
        assert claims.slower <= 0.035
        assert claims.coverage >= 0.93
    assert in_processes(1.2, 0.05).faster >= 0.95


def test_where_a_claim_is_unlikely_few_further_processes_are_started() -> None:
    """Equal configs end after some three processes of six, not after all of them."""
    for pair_noise in (0.02, 0.1):
        claims = in_turns(1.0, pair_noise=pair_noise, process_noise=0.01)
        assert statistics.fmean(claims.looks) < 3.2
    assert statistics.fmean(in_processes(1.0, 0.05).looks) < 6.5


def test_the_chance_of_a_claim_is_how_often_the_last_look_makes_it() -> None:
    """Foreseen after two processes of a known spread, where nothing stops before the last."""
    rng, foreseen, claimed = random.Random(1), [], []
    for _ in range(1500):
        truth = rng.gauss(0.03, 0.05)
        means = [truth + rng.gauss(0, 0.04) for _ in range(MAX_LOOKS)]
        processes = [[math.exp(m + rng.gauss(0, 0.001)) for _ in range(2)] for m in means]
        foreseen.append(together(processes[:2]).chance)
        claimed.append(together(processes).speedup.low > 1.0)
    for low, high in ((0.0, 0.15), (0.15, 0.5), (0.5, 0.85), (0.85, 1.0)):
        seen = [own for chance, own in zip(foreseen, claimed, strict=True) if low <= chance <= high]
        assert low - 0.1 <= statistics.fmean(seen) <= high + 0.1, (low, high)


def test_the_error_that_other_candidates_spent_is_not_spent_again() -> None:
    """A second candidate gets what is left of the 5 %, but never less than a tenth of it."""
    shares = [share_left(taken) for taken in ([], [1 / 6], [0.5], [0.5, 0.5], [1.0], [1.0, 1.0])]
    assert shares[0] == 1.0
    assert shares[1] > shares[2] > shares[3] > shares[4] == shares[5] == LEAST_SHARE
    processes = [[1.1, 1.12], [1.08, 1.11], [1.09, 1.1], [1.1, 1.1]]
    widths = [together(processes, share).speedup.half_width_pct for share in shares[:5]]
    assert widths == sorted(set(widths))
    sides = [1.1, 1.2, 1.15], [1.0, 1.01, 0.99]
    assert apart(*sides, share=0.5).speedup.half_width_pct > apart(*sides).speedup.half_width_pct


def test_data_that_say_nothing_give_an_interval_that_says_so() -> None:
    """Two processes far apart, at what little error several candidates have left."""
    found = together([[1.0, 1.001], [3.0, 3.001]], LEAST_SHARE).speedup
    assert 0.0 < found.low < 1e-6
    assert 1e6 < found.high < math.inf


def test_the_estimate_is_the_geometric_mean_of_the_processes() -> None:
    found = together([[1.1, 1.2], [1.3]]).speedup
    assert found.estimate == pytest.approx(math.sqrt(math.sqrt(1.1 * 1.2) * 1.3))
    found = apart([1.2, 1.3, 1.4], [1.0, 1.1, 0.9]).speedup
    assert found.estimate == pytest.approx((1.2 * 1.3 * 1.4 / (1.0 * 1.1 * 0.9)) ** (1 / 3))


def test_too_little_claims_nothing() -> None:
    for processes in ([], [[1.2]], [[], [1.2]]):
        with pytest.raises(ValueError, match="at least two pairs"):
            together(processes)
    for sides in (([1.0], [1.0]), ([1.0, 2.0], [1.0]), ([], [])):
        with pytest.raises(ValueError, match="equally many processes of each side"):
            apart(*sides)
