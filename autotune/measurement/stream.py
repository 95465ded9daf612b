"""The stream model: what all visits of a search together say about the speed of each config.

    log rate of a visit = config + process + slope . pace + drift(time) + noise

- *config*: what is wanted; a config that was visited several times is known better. By default
  configs say nothing about each other. With a ``Likeness``, those that share knob values do, so
  that the model also knows something of configs that were never visited.
- *process*: equal processes differ, which a config carries that ran in another than the baseline.
  They also differ a little in the ratio of two configs.
- *pace*: the machine's pace around the visit, by pilots. The slopes are learned from visits of one
  config at different paces, never from the difference of two configs. Of a visit without pilots the
  pace is not known, and visits near in time share what is unknown of it.
- *drift*: the machine's pace that the pilots do not show. It wanders and returns (an
  Ornstein-Uhlenbeck process), so visits near in time share it.
- *noise*: of the visit alone, with heavy tails (Student's t with four degrees of freedom).

All but the tails is Gaussian, so the posterior is exact linear algebra over the visits. The spreads
of noise and drift are not known: the result is an average over some, by their marginal likelihood.
Of a long search, only the latest visits are read one by one; of each config, earlier ones are read
as one visit.

Source: Rasmussen and Williams 2006, "Gaussian Processes for Machine Learning", chapters 2 and 5;
for the weights of the tails Lange, Little and Taylor 1989, "Robust statistical modeling using the t
distribution".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from autotune.measurement.interval import Interval
from autotune.measurement.pilot import Pace, mean_pace
from autotune.measurement.stats import t_quantile
from autotune.measurement.visit import Visit

Array = npt.NDArray[np.float64]

LEVEL_SPREAD = 1.0  # of the log rate of all configs together, so wide that it assumes nothing
PROCESS_SPREAD = 0.05  # of equal processes
OWN_SPREAD = 0.02  # of what a process makes of a config, which further visits there do not show
SLOPE, SLOPE_SPREAD = 0.4, 0.4  # of each pilot, where pilots explain the visits at all
TAIL_DEGREES = 4.0
TAIL_ROUNDS = 3
LATEST = 45  # visits that are read one by one
MOST_MERGED = 40  # visits that stand for all earlier ones
TELLING = 45  # visits that tell the spreads; all of them tell the speeds
TOGETHER = 50  # speedups that are computed at once; the covariances of all would cost more
FEW, FAR = 3, 3.0  # visits of a config that have a median; robust deviations that are far from it
# Intervals are Student's t, because the spreads are learned from few visits as well: with 3 degrees
# of freedom, and one more for each 8 visits (calibrated in tests/measurement/test_stream.py).
MIN_DEGREES, VISITS_PER_DEGREE = 3, 8
UNPACED_TIME_S = 40.0  # in which a pace that no pilot showed changes; the longest of TIMES_S
UNLIKELY = 0.03  # spreads that are less likely than the likeliest by this factor are left out
STILL_POSSIBLE = 8.0  # logarithm of such a factor before the tails are known
# What is tried: spreads of the noise of a visit and of the drift, and the drift's time in seconds
NOISES = (0.01, 0.02, 0.04, 0.08, 0.16)
DRIFTS = (0.0, 0.03, 0.12)
TIMES_S = (5.0, 40.0)
# Spreads are assumed near to these, with the weight of a few visits: machines are seldom quieter
USUAL_NOISE, USUAL_DRIFT = 0.04, 0.03


@dataclass(frozen=True)
class Spreads:
    """What the model assumes or has found of the machine.

    Attributes:
        configs: Standard deviation of the log rates of configs.
        noise: Standard deviation of a visit's log rate, by itself.
        drift: Standard deviation of the drift.
        drift_time_s: Time in which most of the drift is forgotten.
        is_paced: Whether the pilots explain a part of the visits. On a quiet machine they do not,
            and would only add their own noise.
    """

    configs: float
    noise: float
    drift: float
    drift_time_s: float
    is_paced: bool = False

    @property
    def log_prior(self) -> float:
        """How likely they are before any visit, up to a constant."""
        return -0.5 * (
            (math.log(self.noise / USUAL_NOISE)) ** 2
            + (math.log((self.drift + 0.01) / (USUAL_DRIFT + 0.01))) ** 2
        )


@cache
def _all_spreads(configs: tuple[float, ...]) -> tuple[Spreads, ...]:
    """Return every combination that is tried, for these spreads of the configs."""
    return tuple(
        Spreads(*of)
        for of in itertools.product(configs, NOISES, DRIFTS, TIMES_S, (False, True))
        if of[2] or of[3] == TIMES_S[0]
    )


@dataclass(frozen=True)
class _Fit:
    """The model with one of the likely spreads.

    Attributes:
        spreads: What is assumed.
        weight: How likely that is; all weights add up to 1.
        covariance: Of the visits' log rates.
        solved: The inverse covariance times the log rates, less what was expected of them.
    """

    spreads: Spreads
    weight: float
    covariance: Array
    solved: Array


class Likeness(Protocol):
    """What is assumed about the log rates of configs before any visit."""

    @property
    def spreads(self) -> tuple[float, ...]:
        """The standard deviations that are tried for one unit of ``covariance()``."""
        ...

    def log_prior(self, spread: float) -> float:
        """Return how likely one of the spreads is before any visit, up to a constant."""
        ...

    def covariance(self, some: Sequence[Hashable], others: Sequence[Hashable]) -> Array:
        """Return the prior covariance of configs, in units of ``Spreads.configs`` squared.

        Args:
            some: One config for each row of the result.
            others: One config for each column.
        """
        ...


class Unlike(Likeness):
    """Configs that have nothing in common."""

    @property
    def spreads(self) -> tuple[float, ...]:
        """Most gain little, or they differ."""
        return 0.05, 0.3

    def log_prior(self, _spread: float) -> float:
        """Return 0: one is as likely as the other."""
        return 0.0

    def covariance(self, some: Sequence[Hashable], others: Sequence[Hashable]) -> Array:
        """Return 1 where two configs are equal, else 0."""
        numbers = {config: number for number, config in enumerate(dict.fromkeys([*some, *others]))}
        rows, columns = (np.array([numbers[c] for c in of], int) for of in (some, others))
        same: Array = (rows[:, None] == columns[None, :]).astype(float)
        return same


@dataclass(frozen=True)
class Posterior:
    """What the model knows of the log speedups of some configs: jointly normal.

    Attributes:
        means: One for each config.
        covariance: Of all of them.
    """

    means: Array
    covariance: Array


class StreamModel:
    """Knows the speed of each config from all visits so far; each call reads them anew.

    Args:
        seen: All visits of a search with their configs, in any order.
        likeness: What configs say about each other.

    Attributes:
        configs: The config of each visit.
        visits: The visits, in the same order.
        spreads: What the visits show of the machine.
    """

    def __init__(
        self, seen: Sequence[tuple[Hashable, Visit]], likeness: Likeness | None = None
    ) -> None:
        self._likeness = likeness or Unlike()
        read = _merged(seen)
        self.configs = [config for config, _ in read]
        visits = self.visits = [visit for _, visit in read]
        self._rates = np.array([visit.log_rate for visit in visits])
        self._own = np.array([visit.own_spread for visit in visits]) ** 2
        at_s = np.array([visit.at_s for visit in visits])
        self._apart_s = np.abs(at_s[:, None] - at_s[None, :])
        same_config = _same(self.configs)
        self._alike = self._likeness.covariance(self.configs, self.configs)
        # What the visits share whatever the spreads are
        same_process = _same([visit.process for visit in visits])
        self._shared: Array = PROCESS_SPREAD**2 * same_process
        self._shared += LEVEL_SPREAD**2 * _same([visit.mode for visit in visits])
        self._shared += OWN_SPREAD**2 * same_process * same_config
        self._paces = _centred_paces(visits)
        self._is_unpaced = np.array([visit.pace is None for visit in visits], float)
        known = self._paces[self._is_unpaced == 0.0]
        # Variance of a log rate by a pace that was not seen
        self._unknown = (SLOPE**2 + SLOPE_SPREAD**2) * float(
            known.var(axis=0).sum() if len(known) else 0.0
        )
        self._centre = float(self._rates.mean()) if visits else 0.0
        self._weights: Array = _first_weights(self.configs, self._rates)
        self._fits: list[_Fit] = []
        self.spreads = Spreads(self._likeness.spreads[-1], USUAL_NOISE, USUAL_DRIFT, TIMES_S[0])
        if visits:
            self._fit()

    def speedup(self, config: Hashable, baseline: Hashable) -> Interval | None:
        """Return the speedup of a config over another one, or None if one was never visited."""
        return self.intervals([config], baseline)[0] if config in self.configs else None

    def intervals(self, configs: Sequence[Hashable], baseline: Hashable) -> list[Interval | None]:
        """Return the speedup of each config over another one; None if that was never visited."""
        if baseline not in self.configs:
            return [None] * len(configs)
        found = list[Interval | None]()
        for first in range(0, len(configs), TOGETHER):
            part = configs[first : first + TOGETHER]
            posterior = self.speedups(part, baseline)
            spreads = np.sqrt(np.maximum(np.diag(posterior.covariance), 0.0))
            found += [
                self._interval(mean, spread) if one != baseline else Interval(1.0, 1.0, 1.0)
                for one, mean, spread in zip(
                    part, posterior.means.tolist(), spreads.tolist(), strict=True
                )
            ]
        return found

    def between(self, config: Hashable, other: Hashable) -> Interval:
        """Return the speedup of a config over another one; neither need have been visited."""
        posterior = self.speedups([config], other)
        spread = math.sqrt(max(float(posterior.covariance[0, 0]), 0.0))
        return self._interval(float(posterior.means[0]), spread)

    def speedups(self, configs: Sequence[Hashable], baseline: Hashable) -> Posterior:
        """Return what is known of the log speedups of configs over another one.

        Configs that were never visited are as fast as the ``Likeness`` makes them.
        """
        every = [*configs, baseline]
        alike = self._likeness.covariance(every, every)
        seen = self._likeness.covariance(every, self.configs)
        before = alike[:-1, :-1] - alike[:-1, -1:] - alike[-1:, :-1] + alike[-1, -1]
        return self._posterior(seen[:-1] - seen[-1:], before, np.zeros(len(self.visits)))

    def rate(self, config: Hashable) -> Interval | None:
        """Return the samples per second of a config at the session's median pace."""
        modes = [v.mode for c, v in zip(self.configs, self.visits, strict=True) if c == config]
        if not modes:
            return None
        level = LEVEL_SPREAD**2 * np.array([float(v.mode == modes[-1]) for v in self.visits])
        seen, before = (self._likeness.covariance([config], o) for o in (self.configs, [config]))
        found = self._posterior(seen, before, level)
        return self._interval(
            float(found.means[0]) + self._centre, math.sqrt(max(float(found.covariance[0, 0]), 0.0))
        )

    def _posterior(self, seen: Array, before: Array, level: Array) -> Posterior:
        """Return what is known of some sums of log rates, averaged over likely spreads.

        Args:
            seen: Their prior covariance with the visits, in units of ``Spreads.configs`` squared; a
                row for each sum.
            before: The same with each other.
            level: Covariance with each visit by the level that all configs share; zeros where it
                cancels out.
        """
        means, covariances = [], []
        for fit in self._fits:
            spread = fit.spreads.configs**2
            shared = spread * seen + level
            means.append(shared @ fit.solved)
            known = shared @ np.linalg.solve(fit.covariance, shared.T)
            covariances.append(spread * before + level.max(initial=0.0) - known)
        weights = np.array([fit.weight for fit in self._fits])
        mean: Array = np.tensordot(weights, np.array(means), 1)
        apart = np.array(means) - mean
        covariance: Array = np.tensordot(weights, np.array(covariances), 1)
        covariance += (weights[:, None] * apart).T @ apart
        return Posterior(mean, covariance)

    def _interval(self, mean: float, spread: float) -> Interval:
        half = self._reach * spread
        return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))

    @property
    def slopes(self) -> tuple[float, float]:
        """The change of the log rate per change of the log pace: one core, all cores."""
        learned = np.zeros(2)
        for fit in self._fits:
            if fit.spreads.is_paced:
                learned += fit.weight * (SLOPE + SLOPE_SPREAD**2 * self._paces.T @ fit.solved)
        return float(learned[0]), float(learned[1])

    @property
    def _reach(self) -> float:
        return t_quantile(MIN_DEGREES + len(self.visits) / VISITS_PER_DEGREE)

    def _fit(self) -> None:
        """Find the likely spreads, and give visits far off the rest less weight."""
        every = _all_spreads(self._likeness.spreads)
        able = [s for s in every if self._paces.any() or not s.is_paced]
        logs = self._log_likelihoods(able)
        self.spreads = able[int(logs.argmax())]
        able = [able[number] for number in np.flatnonzero(logs > logs.max() - STILL_POSSIBLE)]
        for _ in range(TAIL_ROUNDS):
            (fit,) = self._fits_with([self.spreads], [1.0])
            noise = self._noise_of(self.spreads)
            residuals = noise * fit.solved  # what the rest of the model leaves of each visit
            surprise = residuals**2 / (noise * self._weights)
            self._weights = np.asarray((TAIL_DEGREES + 1) / (TAIL_DEGREES + surprise), np.float64)
        logs = self._log_likelihoods(able)
        weights = np.exp(logs - logs.max())
        weights[weights < UNLIKELY] = 0.0
        weights /= weights.sum()
        self.spreads = able[int(weights.argmax())]
        likely = np.flatnonzero(weights)
        self._fits = self._fits_with([able[number] for number in likely], weights[likely].tolist())

    def _fits_with(self, spreads: Sequence[Spreads], weights: Sequence[float]) -> list[_Fit]:
        covariances, left = self._covariances_of(spreads), self._left(spreads)
        solved = np.linalg.solve(covariances, left[:, :, None])[:, :, 0]
        return [_Fit(*one) for one in zip(spreads, weights, covariances, solved, strict=True)]

    def _left(self, spreads: Sequence[Spreads]) -> Array:
        """Return what each of the spreads leaves of the visits' log rates; a row for each."""
        is_paced = np.array([one.is_paced for one in spreads], float)
        paces = is_paced[:, None] * self._paces.sum(1)
        left: Array = self._rates - self._centre - SLOPE * paces
        return left

    def _noise_of(self, spreads: Spreads) -> Array:
        noise: Array = (spreads.noise**2 + self._own) / self._weights
        return noise

    def _covariances_of(
        self, spreads: Sequence[Spreads], numbers: Sequence[int] | None = None
    ) -> Array:
        """Return the covariance of the visits' log rates under each of the spreads, stacked.

        Args:
            spreads: Each gives one matrix.
            numbers: Of the visits that are meant; None means all.
        """
        meant = np.array(range(len(self.visits)) if numbers is None else numbers)
        square = np.ix_(meant, meant)
        shared, alike, apart_s = self._shared[square], self._alike[square], self._apart_s[square]
        covariances = np.empty((len(spreads), *shared.shape))
        times_s = {one.drift_time_s for one in spreads}
        wanders = {time_s: np.exp(-apart_s / time_s) for time_s in times_s}
        paced = SLOPE_SPREAD**2 * self._paces[meant] @ self._paces[meant].T
        is_unpaced = np.outer(self._is_unpaced[meant], self._is_unpaced[meant])
        paced += is_unpaced * self._unknown * np.exp(-apart_s / UNPACED_TIME_S)
        for number, one in enumerate(spreads):
            covariance = covariances[number]
            covariance[:] = shared
            covariance += one.configs**2 * alike
            if one.drift:
                covariance += one.drift**2 * wanders[one.drift_time_s]
            if one.is_paced:
                covariance += paced
            np.einsum("ii->i", covariance)[:] += self._noise_of(one)[meant]
        return covariances

    def _log_likelihoods(self, spreads: Sequence[Spreads]) -> Array:
        """Return how likely each of the spreads is, up to a constant."""
        telling = self._telling()
        factors = np.linalg.cholesky(self._covariances_of(spreads, telling))
        left = self._left(spreads)[:, telling]
        for row in range(len(telling)):  # solves with all factors at once; LU would cost more
            left[:, row] -= np.einsum("ij,ij->i", factors[:, row, :row], left[:, :row])
            left[:, row] /= factors[:, row, row]
        sizes = np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
        priors = np.array(
            [one.log_prior + self._likeness.log_prior(one.configs) for one in spreads]
        )
        found: Array = priors - 0.5 * (left**2).sum(axis=1) - sizes
        return found

    def _telling(self) -> list[int]:
        """Return the numbers of the visits that tell the spreads.

        They are the latest ones, and the first of each config, because a search ends with configs
        that are all about as fast.
        """
        latest = range(max(0, len(self.visits) - TELLING // 2), len(self.visits))
        firsts = [self.configs.index(config) for config in dict.fromkeys(self.configs)]
        others = [number for number in firsts if number not in latest]
        return sorted([*others[: TELLING // 2], *latest])


def _merged(seen: Sequence[tuple[Hashable, Visit]]) -> Sequence[tuple[Hashable, Visit]]:
    """Return the visits with the earliest ones of each config and process made into one.

    So the model costs the same however long a search is. Where even these are many, the first ones
    stay, of which one is the baseline's, and those of the fastest configs.
    """
    if len(seen) <= LATEST + MOST_MERGED:
        return seen
    groups: dict[tuple[Hashable, int], list[Visit]] = {}
    for config, visit in seen[:-LATEST]:
        groups.setdefault((config, visit.process), []).append(visit)
    merged = [(key[0], _one(visits)) for key, visits in groups.items()]
    firsts, others = merged[: MOST_MERGED // 2], merged[MOST_MERGED // 2 :]
    fastest = sorted(others, key=lambda one: -one[1].log_rate)[: MOST_MERGED // 2]
    return [*firsts, *sorted(fastest, key=lambda one: one[1].at_s), *seen[-LATEST:]]


def _one(visits: Sequence[Visit]) -> Visit:
    """Return one visit that stands for several of one config in one process."""
    return replace(
        visits[-1],
        at_s=float(np.mean([visit.at_s for visit in visits])),
        log_rate=float(np.median([visit.log_rate for visit in visits])),
        own_spread=min(visit.own_spread for visit in visits),
        pace=mean_pace([visit.pace for visit in visits if visit.pace is not None]),
    )


def _first_weights(configs: Sequence[Hashable], rates: Array) -> Array:
    """Return less weight for visits far from the median of their config, where there are a few.

    Without it, one such visit would first be taken for a noisy machine.
    """
    weights = np.ones(len(rates))
    residuals, known = np.zeros(len(rates)), np.zeros(len(rates), bool)
    for config in set(configs):
        own = np.array([number for number, other in enumerate(configs) if other == config])
        if len(own) >= FEW:
            residuals[own], known[own] = rates[own] - np.median(rates[own]), True
    if not known.any():
        return weights
    spread = max(1.4826 * float(np.median(np.abs(residuals[known]))), USUAL_NOISE / 2)
    far = np.abs(residuals) > FAR * spread
    weights[far] = (spread * FAR / residuals[far]) ** 2
    return weights


def _same(values: Sequence[Hashable]) -> Array:
    """Return a matrix with 1 where two values are equal, else 0."""
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    coded = np.array([numbers[value] for value in values])
    same: Array = (coded[:, None] == coded[None, :]).astype(float)
    return same


def _centred_paces(visits: Sequence[Visit]) -> Array:
    """Return the paces as differences from their median; 0 where there were no pilots."""
    known = [v.pace for v in visits if v.pace is not None]
    if not known:
        return np.zeros((len(visits), 2))
    middle = Pace(
        float(np.median([p.one_core for p in known])),
        float(np.median([p.all_cores for p in known])),
    )
    paces = [Pace(0.0, 0.0) if v.pace is None else v.pace - middle for v in visits]
    return np.array([[pace.one_core, pace.all_cores] for pace in paces])
