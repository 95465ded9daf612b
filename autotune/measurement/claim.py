"""The claim: what fresh processes together say about a speedup, as one posterior.

In each process two configs take turns, which gives one log ratio m with its error s. Ratios differ
between fresh processes of the same program by tau, so m ~ N(mu, tau² + s²): mu is what is claimed,
and has a wide prior; tau is half-normal, with a scale that grows with the ratio. Two processes say
little about tau, so the prior matters: its scale was chosen by what was seen of processes
(benchmarks/README.md), and calibrated in whole searches (``benchmarks/claims.py``).

The posterior is a sum over a grid of tau. Looking at it after each process does no harm as long as
the search stops early only at ``SURE``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.measurement.interval import Interval, LogRatio
from autotune.measurement.rounds import TAU, TAU_GROWTH, Array

CLAIMED, SURE = 0.975, 0.995
UNLIKELY = 0.5  # below it, after two processes, further ones hardly ever lead to a claim
LEAST_PROCESSES, LEAST_PAIRS = 2, 3
# Where the two configs cannot share a process, each ratio holds the whole difference of two
# processes, 6 to 9 % on a shared 2-core machine. Three pairs cannot tell less than 1.15x from that.
APART_TAU, APART_LEAST = 0.10, math.log(1.15)
# Threads and workers depend more on how a process came to lie in memory and on the cores
LOADING_TAU = 0.04
TAUS = 120  # points of the grid
GRID = 801  # of mu, for the bounds of the interval


@dataclass(frozen=True)
class Claim:
    """What is known of a speedup.

    Attributes:
        speedup: Its median, with the interval that holds it with 95 %.
        chance: How likely it is above 1.
        is_enough: Whether there were enough processes for a claim.
    """

    speedup: Interval
    chance: float
    is_enough: bool

    @property
    def is_faster(self) -> bool:
        """Whether the config may be claimed to be faster."""
        return self.is_enough and self.chance >= CLAIMED and self.speedup.low > 1.0

    @property
    def is_over(self) -> bool:
        """Whether further processes are of no use: it is sure, or a claim has become unlikely."""
        return self.is_enough and not UNLIKELY < self.chance < SURE


def claim(ratios: Sequence[LogRatio], *, tau: float = TAU, apart: bool = False) -> Claim:
    """Return what the log ratios of several processes say together, at least one.

    Args:
        ratios: One for each process; for each pair of processes, where *apart*.
        tau: By how much processes differ near a ratio of 1: scale of the prior.
    """
    if not ratios:
        raise ValueError("a claim needs at least one process")
    m, s = (np.array([getattr(one, of) for one in ratios]) for of in ("value", "error"))
    scale = math.hypot(APART_TAU if apart else tau, TAU_GROWTH * abs(float(m.mean())))
    taus = np.linspace(0.0, 5 * scale, TAUS) + 1e-4
    variances = taus[:, None] ** 2 + s**2
    information = (1 / variances).sum(axis=1)
    means = (m / variances).sum(axis=1) / information
    spreads = 1 / np.sqrt(information)
    logs = -0.5 * (
        np.log(variances).sum(axis=1)
        + ((m - means[:, None]) ** 2 / variances).sum(axis=1)
        + np.log(information)
        + (taus / scale) ** 2
    )
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    reach = 6 * float(spreads.max())
    grid = np.linspace(m.mean() - reach, m.mean() + reach, GRID)
    below = _normal_cdf((grid[:, None] - means) / spreads) @ weights
    middle, low, high = (
        math.exp(float(np.interp(share, below, grid))) for share in (0.5, 0.025, 0.975)
    )
    chance = 1 - float(np.interp(0.0, grid, below, left=0.0, right=1.0))
    is_enough = len(ratios) >= least_processes(apart=apart)
    if apart and math.log(middle) < APART_LEAST:
        chance = min(chance, CLAIMED - 0.005)
    return Claim(Interval(middle, low, high), chance, is_enough)


def least_processes(*, apart: bool) -> int:
    """Return how many processes, or pairs of them, a claim needs."""
    return LEAST_PAIRS if apart else LEAST_PROCESSES


def _normal_cdf(z: Array) -> Array:
    """Return the normal distribution function (Abramowitz and Stegun 7.1.26, within 1e-7)."""
    x = np.abs(z) / math.sqrt(2)
    t = 1 / (1 + 0.3275911 * x)
    terms = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
    tail = sum(a * t ** (n + 1) for n, a in enumerate(terms)) * np.exp(-(x**2)) / 2
    found: Array = np.where(z > 0, 1 - tail, tail)
    return found
