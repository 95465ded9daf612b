"""Speeds of configs that took turns, compared within rounds.

A round gives each config in play one turn, so what the machine does to a whole round is common to
all of its turns and cancels: the cost of a turn is its work, times the pace of its round, over the
speed of its config. Configs enter and leave while a race runs; so all paces and speeds are fitted
together, and two configs are compared by the rounds that they share, and by those that each shares
with others.

Speeds are fitted to totals (as a Poisson regression with two factors does, whatever the noise): a
mean of the logarithms of single steps would take a config whose batches come in bursts for a fast
one, and so would weights that let slow rounds count less. Errors come from what the fit leaves of
stretches of neighbouring rounds, so that a machine whose pace wanders over some rounds widens them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.measurement.interval import LogRatio
from autotune.measurement.turn import KNOWN_ROUNDS, USUAL_NOISE, Played

Array = np.ndarray[Any, np.dtype[np.float64]]
# The logarithm of a ratio differs between fresh processes by about hypot(tau, growth x |log|)
TAU, TAU_GROWTH = 0.02, 0.15
# ... and between machines of one kind by about hypot(omega, growth x |log|). No two such machines
# were measured: it is assumed, so that the interval of a claim holds the ratio of a new machine in
# 93 to 96 % of cases where machines differ by 3 %, and more often where they differ by less (with
# 2 %: in 82 to 93 %, by the same ``python -m benchmarks.machines model``).
OMEGA = 0.03
LEAST_VARIANCE = 1e-8
LEAST_DEGREES = 4.0
MOST_STRETCHES = 12  # of the rounds of a process, that show how far it wanders
MOST_FITS = 100
DRAWS = 512


@dataclass(frozen=True)
class Speeds:
    """What is known of the speeds of configs, relative to the program as written.

    Attributes:
        configs: Where rounds say it, the first one is that to which all are compared.
        means: Logarithm of each speedup.
        covariance: Of these; where rounds say it, the first row and column are 0.
        by_rounds: The same without what processes and machines differ by, which more rounds cannot
            tell; None where one process counts alone.
    """

    configs: tuple[Hashable, ...]
    means: Array
    covariance: Array
    by_rounds: Speeds | None = None

    def __contains__(self, config: object) -> bool:
        """Return whether anything is known about a config."""
        return config in self.configs

    def of(self, config: Hashable, over: Hashable | None = None) -> LogRatio:
        """Return how much faster a config is than another, by default than as written.

        Raises:
            ValueError: when nothing is known of one of them.
        """
        one, cov = self.configs.index(config), self.covariance
        mean, variance = float(self.means[one]), float(cov[one, one])
        if over is not None:
            other = self.configs.index(over)
            mean -= float(self.means[other])
            variance += float(cov[other, other] - 2 * cov[one, other])
        return LogRatio(mean, math.sqrt(max(variance, LEAST_VARIANCE)))

    def draws(self, seed: int) -> Array:
        """Return ``DRAWS`` speedups of all configs that may be true, as logarithms."""
        noise = np.random.default_rng(seed).standard_normal((DRAWS, len(self.means)))
        values, vectors = np.linalg.eigh(self.covariance)
        drawn: Array = self.means + noise @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
        return drawn


def speeds(
    machines: Sequence[Sequence[Sequence[Mapping[Any, Played]]]], first: Hashable
) -> Speeds | None:
    """Return the speeds that the rounds of all processes of one or more machines show together.

    Where several processes count, each is as uncertain as processes differ among each other, too;
    so is each of several machines. All configs are compared with *first*, and rounds without it are
    left out. None before the first round with another config.

    Args:
        machines: Rounds, by process, by machine.
        first: The config that all others are compared with.
    """
    return pooled([[of_process(rounds, first) for rounds in its] for its in machines])


def pooled(machines: Sequence[Sequence[Speeds | None]]) -> Speeds | None:
    """Return what the processes of one or more machines say together, as ``speeds`` does.

    Args:
        machines: What ``of_process`` returned, by process, by machine.
    """
    return _together([_together(processes, TAU) for processes in machines], OMEGA)


def _together(every: Sequence[Speeds | None], differs: float) -> Speeds | None:
    """Return what several processes, or machines, say that differ by about *differs*."""
    found = [one for one in every if one is not None]
    if len(found) < 2:
        return found[0] if found else None
    configs = tuple(dict.fromkeys(config for one in found for config in one.configs))
    information, of_rounds = np.zeros((2, len(configs) - 1, len(configs) - 1))
    weighted = np.zeros(len(configs) - 1)
    for one in found:
        places = [configs.index(config) - 1 for config in one.configs[1:]]
        apart = np.hypot(differs, TAU_GROWTH * one.means[1:])
        precision = np.linalg.inv(one.covariance[1:, 1:] + np.diag(apart**2))
        information[np.ix_(places, places)] += precision
        by_rounds = (one.by_rounds or one).covariance[1:, 1:]
        of_rounds[np.ix_(places, places)] += np.linalg.inv(by_rounds)
        weighted[places] += precision @ one.means[1:]
    covariance, by_rounds = np.zeros((2, len(configs), len(configs)))
    covariance[1:, 1:] = np.linalg.inv(information)
    by_rounds[1:, 1:] = np.linalg.inv(of_rounds)
    means = np.concatenate([[0.0], covariance[1:, 1:] @ weighted])
    return Speeds(configs, means, covariance, Speeds(configs, means, by_rounds))


def of_process(rounds: Sequence[Mapping[Any, Played]], first: Hashable) -> Speeds | None:
    """Return what the rounds of one process say; None before the first with another config."""
    rounds = [one for one in rounds if first in one and len(one) > 1]
    if not rounds:
        return None
    configs = tuple(dict.fromkeys([first, *(config for one in rounds for config in one)]))
    stretches, counts = _stretches(rounds)
    work, cost = np.zeros((2, len(configs), len(stretches)))
    for n, stretch in enumerate(stretches):
        for config, its in stretch.items():
            work[configs.index(config), n], cost[configs.index(config), n] = its.work, its.cost
    lasting = np.array(counts, float)
    speed, pace = _fit(work, cost, np.ones(len(configs)))
    noise = _noise(work, cost, lasting, speed, pace)
    speed, pace = _fit(work, cost, 1 / noise)
    noise = _noise(work, cost, lasting, speed, pace)
    known = lasting * (work > 0) / noise[:, None]
    information = np.diag(known.sum(axis=1)) - known / known.sum(axis=0) @ known.T
    covariance = np.zeros_like(information)
    covariance[1:, 1:] = np.linalg.inv(information[1:, 1:])
    return Speeds(configs, np.log(speed / speed[0]), covariance)


def _stretches(
    rounds: Sequence[Mapping[Any, Played]],
) -> tuple[list[Mapping[Any, Played]], list[int]]:
    # In about ``MOST_STRETCHES`` parts, or more where configs enter and leave.
    most = math.ceil(len(rounds) / MOST_STRETCHES)
    found: list[Mapping[Any, Played]] = []
    counts: list[int] = []
    for one in rounds:
        if found and counts[-1] < most and found[-1].keys() == one.keys():
            before = found[-1]
            found[-1] = {config: before[config] + its for config, its in one.items()}
            counts[-1] += 1
        else:
            found.append(one)
            counts.append(1)
    return found, counts


def _fit(work: Array, cost: Array, weights: Array) -> tuple[Array, Array]:
    """Return the speed of each config, and the pace of each stretch.

    Work and cost are by config and stretch, 0 where a config was not in play; *weights* say how
    much each config tells of the pace of a stretch.
    """
    heavy = weights[:, None] * (work > 0)
    speed = work.sum(axis=1) / cost.sum(axis=1)
    for _ in range(MOST_FITS):
        expected = work / speed[:, None] + (work == 0)
        pace = (heavy * cost / expected).sum(axis=0) / heavy.sum(axis=0)
        before, speed = speed, work @ pace / cost.sum(axis=1)
        if np.allclose(speed / speed[0], before / before[0], rtol=1e-6, atol=0.0):
            break
    return speed, pace


def _noise(work: Array, cost: Array, lasting: Array, speed: Array, pace: Array) -> Array:
    """Return the variance of one turn of each config, relative to its cost.

    Few turns do not show it. So that of each config leans on that of all of them, and on
    ``USUAL_NOISE``.
    """
    plays = work > 0
    rest = plays * (cost / (work * pace / speed[:, None] + ~plays) - 1)
    told = np.maximum(plays.sum(axis=1) - 1.0, 0.0)
    # the fit of the pace takes its part of what is left
    part = (plays * (1 - 1 / plays.sum(axis=0))).sum(axis=1) / plays.sum(axis=1)
    seen = (lasting * rest**2).sum(axis=1) / part
    pooled = (KNOWN_ROUNDS * USUAL_NOISE**2 + seen.sum()) / (KNOWN_ROUNDS + told.sum())
    degrees = KNOWN_ROUNDS + told
    tails = np.maximum(degrees, LEAST_DEGREES)
    # with the tails of Student's t, which few turns have
    found: Array = (KNOWN_ROUNDS * pooled + seen) / degrees * tails / (tails - 2)
    return found
