"""The stream model: what all visits of a search together say about the speed of each config.

    log rate of a visit = config + process + slope . pace + drift(time) + noise

- *config*: what is wanted; a config that was visited several times is known better.
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

Source: Rasmussen and Williams 2006, "Gaussian Processes for Machine Learning", chapters 2 and 5;
for the weights of the tails Lange, Little and Taylor 1989, "Robust statistical modeling using the t
distribution".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotune.measurement.interval import Interval
from autotune.measurement.pilot import Pace
from autotune.measurement.stats import t_quantile
from autotune.measurement.visit import Visit

Array = npt.NDArray[np.float64]

LEVEL_SPREAD = 1.0  # of the log rate of all configs together, so wide that it assumes nothing
PROCESS_SPREAD = 0.05  # of equal processes
OWN_SPREAD = 0.02  # of what a process makes of a config, which further visits there do not show
SLOPE, SLOPE_SPREAD = 0.4, 0.4  # of each pilot, where pilots explain the visits at all
TAIL_DEGREES = 4.0
TAIL_ROUNDS = 3
TELLING = 150  # of the latest visits, which tell the spreads; all of them tell the speeds
FEW, FAR = 3, 3.0  # visits of a config that have a median; robust deviations that are far from it
# Intervals are Student's t, because the spreads are learned from few visits as well: with 3 degrees
# of freedom, and one more for each 8 visits (calibrated in tests/measurement/test_stream.py).
MIN_DEGREES, VISITS_PER_DEGREE = 3, 8
UNPACED_TIME_S = 40.0  # in which a pace that no pilot showed changes; the longest of TIMES_S
UNLIKELY = 0.03  # spreads that are less likely than the likeliest by this factor are left out
# What is tried: spreads of the noise of a visit and of the drift, and the drift's time in seconds
CONFIGS = (0.05, 0.3)  # spreads of the configs' log rates: most gain little, or they differ
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


ALL_SPREADS = tuple(
    Spreads(configs, noise, drift, time_s, is_paced)
    for configs, noise, drift, time_s, is_paced in itertools.product(
        CONFIGS, NOISES, DRIFTS, TIMES_S, (False, True)
    )
    if drift or time_s == TIMES_S[0]
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


class StreamModel:
    """Knows the speed of each config from all visits so far; each call reads them anew.

    Args:
        seen: All visits of a search with their configs, in any order.

    Attributes:
        configs: The config of each visit.
        visits: The visits, in the same order.
        spreads: What the visits show of the machine.
    """

    def __init__(self, seen: Sequence[tuple[Hashable, Visit]]) -> None:
        self.configs = [config for config, _ in seen]
        visits = self.visits = [visit for _, visit in seen]
        self._rates = np.array([visit.log_rate for visit in visits])
        self._own = np.array([visit.own_spread for visit in visits]) ** 2
        at_s = np.array([visit.at_s for visit in visits])
        self._apart_s = np.abs(at_s[:, None] - at_s[None, :])
        self._same_config = _same(self.configs)
        # What the visits share whatever the spreads are
        same_process = _same([visit.process for visit in visits])
        self._shared: Array = PROCESS_SPREAD**2 * same_process + LEVEL_SPREAD**2
        self._shared += OWN_SPREAD**2 * same_process * self._same_config
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
        self.spreads = Spreads(CONFIGS[1], USUAL_NOISE, USUAL_DRIFT, TIMES_S[0])
        if visits:
            self._fit()

    def speedup(self, config: Hashable, baseline: Hashable) -> Interval | None:
        """Return the speedup of a config over another one, or None if one was never visited."""
        columns = [self._of_config(which) for which in (config, baseline)]
        if not all(column.any() for column in columns):
            return None
        if config == baseline:
            return Interval(1.0, 1.0, 1.0)
        return self._estimate(columns[0] - columns[1], is_level=False)

    def rate(self, config: Hashable) -> Interval | None:
        """Return the samples per second of a config at the session's median pace."""
        column = self._of_config(config)
        return self._estimate(column, is_level=True) if column.any() else None

    def _estimate(self, column: Array, *, is_level: bool) -> Interval:
        """Return the effect of a config or the difference of two, averaged over likely spreads.

        Args:
            column: 1 at the config's visits, and -1 at those of the one that is taken off.
            is_level: Whether the level of all configs belongs to it: a rate and no ratio.
        """
        level = LEVEL_SPREAD**2 * is_level
        means, variances = np.zeros(len(self._fits)), np.zeros(len(self._fits))
        for number, fit in enumerate(self._fits):
            spread = fit.spreads.configs**2
            shared = spread * column + level
            means[number] = shared @ fit.solved
            before = spread * (1 if is_level else 2) + level
            variances[number] = before - shared @ np.linalg.solve(fit.covariance, shared)
        centre = self._centre if is_level else 0.0
        weights = np.array([fit.weight for fit in self._fits])
        mean = float(weights @ means)
        variance = float(weights @ (variances + (means - mean) ** 2))
        half = self._reach * math.sqrt(max(variance, 0.0))
        return Interval(
            math.exp(centre + mean), math.exp(centre + mean - half), math.exp(centre + mean + half)
        )

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

    def _of_config(self, config: Hashable) -> Array:
        column: Array = np.array([float(other == config) for other in self.configs])
        return column

    def _fit(self) -> None:
        """Find the likely spreads, and give visits far off the rest less weight."""
        able = [s for s in ALL_SPREADS if self._paces.any() or not s.is_paced]
        self.spreads = able[int(self._log_likelihoods(able).argmax())]
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
        left: Array = self._rates - self._centre - SLOPE * is_paced[:, None] * self._paces.sum(1)
        return left

    def _noise_of(self, spreads: Spreads) -> Array:
        noise: Array = (spreads.noise**2 + self._own) / self._weights
        return noise

    def _covariances_of(self, spreads: Sequence[Spreads], latest: int | None = None) -> Array:
        """Return the covariance of the visits' log rates under each of the spreads, stacked.

        Args:
            spreads: Each gives one matrix.
            latest: How many of the latest visits are meant; None means all.
        """
        late = slice(-(latest or 0), None)
        shared, same_config = self._shared[late, late], self._same_config[late, late]
        covariances = np.empty((len(spreads), *shared.shape))
        times_s = {one.drift_time_s for one in spreads}
        wanders = {time_s: np.exp(-self._apart_s[late, late] / time_s) for time_s in times_s}
        paced = SLOPE_SPREAD**2 * self._paces[late] @ self._paces[late].T
        is_unpaced = np.outer(self._is_unpaced[late], self._is_unpaced[late])
        paced += is_unpaced * self._unknown * np.exp(-self._apart_s[late, late] / UNPACED_TIME_S)
        for number, one in enumerate(spreads):
            covariance = covariances[number]
            covariance[:] = shared
            covariance += one.configs**2 * same_config
            if one.drift:
                covariance += one.drift**2 * wanders[one.drift_time_s]
            if one.is_paced:
                covariance += paced
            np.einsum("ii->i", covariance)[:] += self._noise_of(one)[late]
        return covariances

    def _log_likelihoods(self, spreads: Sequence[Spreads]) -> Array:
        """Return how likely each of the spreads is, up to a constant, by the latest visits."""
        factors = np.linalg.cholesky(self._covariances_of(spreads, TELLING))
        left = np.linalg.solve(factors, self._left(spreads)[:, -TELLING:, None])[:, :, 0]
        sizes = np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
        priors = np.array([one.log_prior for one in spreads])
        found: Array = priors - 0.5 * (left**2).sum(axis=1) - sizes
        return found


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
