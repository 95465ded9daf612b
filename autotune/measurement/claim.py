"""The claim: what fresh processes together say about a speedup, as one posterior.

In each process two configs take turns, which gives one log ratio m with its error s. Ratios differ
between fresh processes of the same program by tau, so m ~ N(mu, tau² + s²): mu is what is claimed,
and has a wide prior; tau is half-normal, with a scale that grows with the ratio. Two processes say
little about tau, so the prior matters: its scale was chosen by what was seen of processes
(benchmarks/README.md), and calibrated in whole searches (``benchmarks/claims.py``).

Machines of one kind may differ in the ratio, too, by omega: the processes of machine j have
mu + b_j in common, with b_j ~ N(0, omega²). What several machines say is claimed for another one of
their kind, mu + b, so that omega stays in the interval however many there are.

The posterior is a sum over a grid of tau and omega. Looking at it after each process does no harm
as long as the search stops early only at ``SURE``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from autotune.measurement.interval import Interval, LogRatio
from autotune.measurement.rounds import OMEGA, TAU, TAU_GROWTH, Array

CLAIMED, SURE = 0.975, 0.995
UNLIKELY = 0.5  # below it, after two processes, further ones hardly ever lead to a claim
LEAST_PROCESSES, LEAST_PAIRS = 2, 3
LEAST_MACHINES = 2  # of a claim for another machine
SMALL_GAP = math.log(1.05)  # machines that surely differ by more get claims of their own
# Where the two configs cannot share a process, each ratio holds the whole difference of two
# processes, 6 to 9 % on a shared 2-core machine. Three pairs cannot tell less than 1.15x from that.
APART_TAU, APART_LEAST = 0.10, math.log(1.15)
# Threads and workers depend more on how a process came to lie in memory and on the cores
LOADING_TAU = 0.04
TAUS = 120  # points of the grid
LEAST_TAU = 1e-4
STEPS = 12  # of tau and of omega, where both are unknown
GRID = 801  # of mu, for the bounds of the interval


@dataclass(frozen=True)
class Claim:
    """What is known of a speedup: on the machine of the processes, or on another of their kind.

    Attributes:
        speedup: Its median, with the interval that holds it with 95 %.
        chance: How likely it is above 1.
        is_enough: Whether there were enough processes for a claim.
        sure: The interval that holds the speedup with 99 %, outside of which looking again and
            again finds a truth too seldom to matter.
        machines: On how many machines they ran; of more than one, it is for another machine.
    """

    speedup: Interval
    chance: float
    is_enough: bool
    sure: Interval = field(kw_only=True)
    machines: int = field(default=1, kw_only=True)

    @property
    def is_faster(self) -> bool:
        """Whether the config may be claimed to be faster."""
        return self.is_enough and self.chance >= CLAIMED and self.speedup.low > 1.0

    @property
    def is_over(self) -> bool:
        """Whether further processes are of no use: it is sure, or a claim has become unlikely."""
        return self.is_enough and not UNLIKELY < self.chance < SURE


def claim(
    machines: Sequence[Sequence[LogRatio]], *, tau: float = TAU, apart: bool = False
) -> Claim:
    """Return what the log ratios of several processes say together, at least one.

    Args:
        machines: By machine, one ratio for each process; for each pair of processes, where *apart*.
        tau: By how much processes differ near a ratio of 1: scale of the prior.
    """
    machines = [one for one in machines if one]
    if not machines:
        raise ValueError("a claim needs at least one process")
    middle = _mean(machines)
    weights, means, spreads = _posterior(machines, _scale(tau, middle, apart=apart))
    reach = 6 * float(spreads.max())
    grid = np.linspace(middle - reach, middle + reach, GRID)
    below = _normal_cdf((grid[:, None] - means) / spreads) @ weights
    shares = (0.5, 1 - CLAIMED, CLAIMED, 1 - SURE, SURE)
    median, low, high, lower, higher = (
        math.exp(float(np.interp(share, below, grid))) for share in shares
    )
    chance = 1 - float(np.interp(0.0, grid, below, left=0.0, right=1.0))
    if apart and math.log(median) < APART_LEAST:
        chance = min(chance, CLAIMED - 0.005)
    is_enough = _is_enough([len(one) for one in machines], apart=apart)
    sure = Interval(median, lower, higher)
    return Claim(Interval(median, low, high), chance, is_enough, sure=sure, machines=len(machines))


def differing(
    machines: Sequence[Sequence[LogRatio]], *, tau: float = TAU, apart: bool = False
) -> bool:
    """Return whether two machines surely differ in a ratio by more than ``SMALL_GAP``.

    Args:
        machines: By machine, as ``claim`` takes them.
        tau: As ``claim`` takes it.
    """
    machines = [one for one in machines if one]
    if len(machines) < LEAST_MACHINES:
        return False
    scale = _scale(tau, _mean(machines), apart=apart)
    taus = np.linspace(0.0, 5 * scale, TAUS) + LEAST_TAU
    logs, centers, variances = _by_machine(machines, taus, scale)
    weights = _weights(logs)
    for one, other in combinations(range(len(machines)), 2):
        gaps = np.stack([centers[:, one] - centers[:, other], centers[:, other] - centers[:, one]])
        errors = np.sqrt(variances[:, one] + variances[:, other])
        if float((_normal_cdf((gaps - SMALL_GAP) / errors) @ weights).max()) >= CLAIMED:
            return True
    return False


def _mean(machines: Sequence[Sequence[LogRatio]]) -> float:
    return float(np.mean([ratio.value for one in machines for ratio in one]))


def _scale(tau: float, middle: float, *, apart: bool) -> float:
    return math.hypot(APART_TAU if apart else tau, TAU_GROWTH * abs(middle))


def _by_machine(
    machines: Sequence[Sequence[LogRatio]], taus: Array, scale: float
) -> tuple[Array, Array, Array]:
    """Return what each tau makes of the ratios of the machines, whatever these have in common.

    Returns:
        Logarithm of how likely each tau is; mean and variance of the ratio, by tau and machine.
    """
    logs = -0.5 * (taus / scale) ** 2
    means, variances = np.zeros((2, len(taus), len(machines)))
    for number, ratios in enumerate(machines):
        m, s = (np.array([getattr(one, of) for one in ratios]) for of in ("value", "error"))
        known = 1 / (taus[:, None] ** 2 + s**2)
        variances[:, number] = 1 / known.sum(axis=1)
        means[:, number] = (m * known).sum(axis=1) * variances[:, number]
        rest = known * (m - means[:, number, None]) ** 2 - np.log(known)
        logs -= 0.5 * (rest.sum(axis=1) - np.log(variances[:, number]))
    return logs, means, variances


def _posterior(machines: Sequence[Sequence[LogRatio]], scale: float) -> tuple[Array, Array, Array]:
    """Return what is known of the logarithm of a ratio, as normal distributions.

    Returns:
        Weight, mean and standard deviation of each; of several machines, for another one.
    """
    if len(machines) == 1:
        taus = np.linspace(0.0, 5 * scale, TAUS) + LEAST_TAU
        logs, means, variances = _by_machine(machines, taus, scale)
        return _weights(logs), means[:, 0], np.sqrt(variances[:, 0])
    steps = (np.arange(STEPS) + 0.5) / STEPS  # their squares are dense where the prior is
    likely, centers, errors = _by_machine(machines, 5 * scale * steps**2, scale)
    omega = math.hypot(OMEGA, TAU_GROWTH * abs(_mean(machines)))
    omegas = 5 * omega * steps[:, None] ** 2
    known = 1 / (omegas[:, :, None] ** 2 + errors)
    variances = 1 / known.sum(axis=2)
    means = (centers * known).sum(axis=2) * variances
    rest = known * (centers - means[:, :, None]) ** 2 - np.log(known)
    logs = likely - 0.5 * (rest.sum(axis=2) - np.log(variances) + (omegas / omega) ** 2)
    logs += np.log(steps) + np.log(steps[:, None])
    spreads = np.sqrt(variances + omegas**2)
    return _weights(logs).ravel(), means.ravel(), spreads.ravel()


def _weights(logs: Array) -> Array:
    weights = np.exp(logs - logs.max())
    found: Array = weights / weights.sum()
    return found


def _is_enough(processes: Sequence[int], *, apart: bool) -> bool:
    if len(processes) == 1:
        return processes[0] >= least_processes(apart=apart)
    return sum(count >= LEAST_PROCESSES for count in processes) >= LEAST_MACHINES


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
