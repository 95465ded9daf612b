"""Speeds of configs that took turns, compared within rounds.

A round gives each config in play one turn, so what the machine does to a whole round is common to
all of its turns and cancels. A speed is work over cost, both in total: a mean of the logarithms of
single steps would take a config whose batches come in bursts for a fast one, and so would weights
that let slow rounds count less. Errors come from the jackknife over groups of neighbouring rounds
(Efron, The Jackknife, 1982), so that a machine whose pace wanders over some rounds widens them.

Configs enter and leave while a race runs, so each is compared with the first one, which is in every
round, over the rounds that both have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.measurement.interval import LogRatio
from autotune.measurement.turn import KNOWN_ROUNDS, MOST_GROUPS, USUAL_NOISE, Played

Array = np.ndarray[Any, np.dtype[np.float64]]
# The logarithm of a ratio differs between fresh processes by about hypot(tau, growth x |log|)
TAU, TAU_GROWTH = 0.02, 0.15
LEAST_VARIANCE = 1e-8
LEAST_DEGREES = 4.0
DRAWS = 512


@dataclass(frozen=True)
class Speeds:
    """What rounds say about the speeds of configs, relative to the first one.

    Attributes:
        configs: The first one is that to which all are compared.
        means: Logarithm of each speedup.
        covariance: Of these, from the rounds; the first row and column are 0.
    """

    configs: tuple[Hashable, ...]
    means: Array
    covariance: Array

    def __contains__(self, config: object) -> bool:
        """Return whether anything is known about a config."""
        return config in self.configs

    def of(self, config: Hashable, over: Hashable | None = None) -> LogRatio:
        """Return how much faster a config is than another, by default than the first one.

        Raises:
            ValueError: when one of them was in no round.
        """
        one = self.configs.index(config)
        other = 0 if over is None else self.configs.index(over)
        cov = self.covariance
        variance = float(cov[one, one] + cov[other, other] - 2 * cov[one, other])
        return LogRatio(
            float(self.means[one] - self.means[other]), math.sqrt(max(variance, LEAST_VARIANCE))
        )

    def draws(self, seed: int = 0) -> Array:
        """Return ``DRAWS`` speedups of all configs that may be true, as logarithms."""
        noise = np.random.default_rng(seed).standard_normal((DRAWS, len(self.means)))
        values, vectors = np.linalg.eigh(self.covariance)
        drawn: Array = self.means + noise @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
        return drawn


def speeds(processes: Sequence[Sequence[Mapping[Any, Played]]], first: Hashable) -> Speeds | None:
    """Return the speeds that the rounds of one or more processes show together.

    Where several processes count, each is as uncertain as processes differ among each other, too.

    Args:
        processes: The rounds of each process; those without *first* are left out.
        first: The config that all are compared with.

    Returns:
        None before the first round with another config.
    """
    found = [one for rounds in processes if (one := _speeds(rounds, first)) is not None]
    if len(found) < 2:
        return found[0] if found else None
    configs = tuple(dict.fromkeys(config for one in found for config in one.configs))
    information = np.zeros((len(configs) - 1,) * 2)
    weighted = np.zeros(len(configs) - 1)
    for one in found:
        places = [configs.index(config) - 1 for config in one.configs[1:]]
        apart = np.hypot(TAU, TAU_GROWTH * one.means[1:])
        precision = np.linalg.inv(one.covariance[1:, 1:] + np.diag(apart**2))
        information[np.ix_(places, places)] += precision
        weighted[places] += precision @ one.means[1:]
    covariance = np.zeros((len(configs),) * 2)
    covariance[1:, 1:] = np.linalg.inv(information)
    means = np.concatenate([[0.0], covariance[1:, 1:] @ weighted])
    return Speeds(configs, means, covariance)


def _speeds(rounds: Sequence[Mapping[Any, Played]], first: Hashable) -> Speeds | None:
    """Return the speeds that the rounds of one process show."""
    rounds = [one for one in rounds if first in one and len(one) > 1]
    if not rounds:
        return None
    every = dict.fromkeys(config for one in rounds for config in one)
    configs = (first, *(config for config in every if config != first))
    shape = (len(configs), len(rounds))
    work, cost, own_work, own_cost = (np.zeros(shape) for _ in range(4))
    for n, one in enumerate(rounds):
        for place, config in enumerate(configs):
            if (its := one.get(config)) is not None:
                work[place, n], cost[place, n] = its.work, its.cost
                # what the first config did in the same round
                own_work[place, n], own_cost[place, n] = one[first].work, one[first].cost

    def ratio(*sums: Array) -> Array:
        its_work, its_cost, first_work, first_cost = sums
        with np.errstate(divide="ignore", invalid="ignore"):
            found: Array = np.log(its_work / its_cost * first_cost / first_work)
        return found

    means = ratio(*(of.sum(axis=1) for of in (work, cost, own_work, own_cost)))
    left_out = _left_out(ratio, work, cost, own_work, own_cost)
    played = np.count_nonzero(cost, axis=1)
    return Speeds(configs, means, _variances(left_out, played.tolist()))


def _left_out(ratio: Callable[..., Array], *sums: Array) -> Array:
    """Return a ratio of sums over all rounds but one group, for each group of neighbouring rounds.

    Args:
        ratio: Of one sum for each of *sums*.
        sums: What was counted, by config and round.
    """
    count = sums[0].shape[1]
    groups = np.array_split(np.arange(count), min(count, MOST_GROUPS))
    rest = ([of.sum(axis=1) - of[:, group].sum(axis=1) for of in sums] for group in groups)
    return np.array([ratio(*each) for each in rest])


def _variances(left_out: Array, played: Sequence[int]) -> Array:
    """Return the covariance of ratios, from the jackknife.

    Few rounds do not show their own noise. So the variance of each config leans on that of all of
    them, and on ``USUAL_NOISE``; what configs have in common stays.

    Args:
        left_out: The ratios by group and config, as ``_left_out`` returns them.
        played: How many rounds each config was in; the first is that to which all are compared.
    """
    values = np.ma.masked_invalid(left_out)  # all of a config's rounds were left out
    groups = len(values)
    apart = (values - values.mean(axis=0)).filled(0.0)
    seen = (groups - 1) / groups * apart.T @ apart
    rounds = np.array(played, float)
    of_a_round = np.diag(seen) * rounds
    told = np.maximum(np.minimum(rounds, groups) - 1, 0.0)
    shows = told * (of_a_round > 0)
    usual = 2 * USUAL_NOISE**2  # of two turns each
    pooled = (KNOWN_ROUNDS * usual + shows @ of_a_round) / (KNOWN_ROUNDS + shows.sum())
    degrees = KNOWN_ROUNDS + told
    variance = (KNOWN_ROUNDS * pooled + told * of_a_round) / degrees / rounds
    known = np.maximum(degrees, LEAST_DEGREES)
    variance *= known / (known - 2)  # of Student's t, whose tails few rounds have
    variance[0] = 0.0
    scale = np.sqrt(np.divide(variance, np.diag(seen), where=np.diag(seen) > 0, out=variance * 0))
    covariance: Array = seen * np.outer(scale, scale)
    np.fill_diagonal(covariance, variance)
    return covariance
