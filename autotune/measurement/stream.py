"""The stream model: what all visits of a search together say about the speed of each config.

    log rate of a visit = config + process + slope . pace + drift(time) + noise

- *config*: what is wanted; a config that was visited several times is known better.
- *process*: equal processes differ, which a config carries that ran in another than the baseline.
- *pace*: the machine's pace around the visit, by pilots. The slopes are learned from visits of one
  config at different paces, never from the difference of two configs.
- *drift*: the machine's pace that the pilots do not show. It wanders and returns (an
  Ornstein-Uhlenbeck process), so visits near in time share it.
- *noise*: of the visit alone, with heavy tails (Student's t with four degrees of freedom).

All but the tails is Gaussian, so the posterior is exact linear algebra over the visits. The spreads
of noise, drift and processes are those with the largest marginal likelihood, among a few.

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

CONFIG_SPREAD = 1.0  # of log rates of configs, so wide that it assumes nothing
PROCESS_SPREAD = 0.05  # of equal processes, until two of one config were seen
SLOPE, SLOPE_SPREAD = 0.4, 0.4  # of each pilot, where pilots explain the visits at all
TAIL_DEGREES = 4.0
TAIL_ROUNDS = 3
# Intervals are Student's t, because the spreads are learned from few visits as well: with 3 degrees
# of freedom, and one more for each 8 visits (calibrated in tests/measurement/test_stream.py).
MIN_DEGREES, VISITS_PER_DEGREE = 3, 8
# What is tried: spreads of the noise of a visit and of the drift, and the drift's time in seconds
NOISES = (0.01, 0.02, 0.04, 0.08, 0.16)
DRIFTS = (0.0, 0.03, 0.1)
TIMES_S = (5.0, 40.0)
# Spreads are assumed near to these, with the weight of a few visits: machines are seldom quieter
USUAL_NOISE, USUAL_DRIFT = 0.04, 0.03


@dataclass(frozen=True)
class Spreads:
    """What the model assumes or has found of the machine.

    Attributes:
        noise: Standard deviation of a visit's log rate, by itself.
        drift: Standard deviation of the drift.
        drift_time_s: Time in which most of the drift is forgotten.
        is_paced: Whether the pilots explain a part of the visits. On a quiet machine they do not,
            and would only add their own noise.
    """

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
    Spreads(noise, drift, time_s, is_paced)
    for noise, drift, time_s, is_paced in itertools.product(NOISES, DRIFTS, TIMES_S, (False, True))
    if drift or time_s == TIMES_S[0]
)


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
        self._paces = _centred_paces(visits)
        self._centre = float(self._rates.mean()) if visits else 0.0
        self._weights = np.ones(len(visits))
        self.spreads = Spreads(USUAL_NOISE, USUAL_DRIFT, TIMES_S[0])
        if visits:
            self._fit()

    def speedup(self, config: Hashable, baseline: Hashable) -> Interval | None:
        """Return the speedup of a config over another one, or None if one was never visited."""
        columns = [self._of_config(which) for which in (config, baseline)]
        if not all(column.any() for column in columns):
            return None
        if config == baseline:
            return Interval(1.0, 1.0, 1.0)
        difference = CONFIG_SPREAD**2 * (columns[0] - columns[1])
        mean = float(difference @ self._solved)
        variance = 2 * CONFIG_SPREAD**2 - float(
            difference @ np.linalg.solve(self._covariance, difference)
        )
        half = self._reach * math.sqrt(max(variance, 0.0))
        return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))

    def rate(self, config: Hashable) -> Interval | None:
        """Return the samples per second of a config at the session's median pace."""
        column = self._of_config(config)
        if not column.any():
            return None
        shared = CONFIG_SPREAD**2 * (column + 1.0)
        mean = self._centre + float(shared @ self._solved)
        variance = 2 * CONFIG_SPREAD**2 - float(shared @ np.linalg.solve(self._covariance, shared))
        half = self._reach * math.sqrt(max(variance, 0.0))
        return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))

    @property
    def slopes(self) -> tuple[float, float]:
        """The change of the log rate per change of the log pace: one core, all cores."""
        if not self.spreads.is_paced:
            return 0.0, 0.0
        learned = SLOPE_SPREAD**2 * self._paces.T @ self._solved
        return SLOPE + float(learned[0]), SLOPE + float(learned[1])

    @property
    def _reach(self) -> float:
        return t_quantile(MIN_DEGREES + len(self.visits) / VISITS_PER_DEGREE)

    def _of_config(self, config: Hashable) -> Array:
        column: Array = np.array([float(other == config) for other in self.configs])
        return column

    def _fit(self) -> None:
        """Choose the spreads, and give visits far off the rest less weight."""
        able = [s for s in ALL_SPREADS if self._paces.any() or not s.is_paced]
        self.spreads = max(able, key=self._log_likelihood)
        for _ in range(TAIL_ROUNDS):
            self._covariance = self._covariance_of(self.spreads)
            self._solved = np.linalg.solve(self._covariance, self._left(self.spreads))
            noise = self._noise_of(self.spreads)
            residuals = noise * self._solved  # what the rest of the model leaves of each visit
            surprise = residuals**2 / (noise * self._weights)
            self._weights = (TAIL_DEGREES + 1) / (TAIL_DEGREES + surprise)

    def _left(self, spreads: Spreads) -> Array:
        expected = SLOPE * spreads.is_paced * self._paces.sum(axis=1)
        left: Array = self._rates - self._centre - expected
        return left

    def _noise_of(self, spreads: Spreads) -> Array:
        own = np.array([visit.own_spread for visit in self.visits])
        noise: Array = (spreads.noise**2 + own**2) / self._weights
        return noise

    def _covariance_of(self, spreads: Spreads) -> Array:
        at_s = np.array([visit.at_s for visit in self.visits])
        configs = _same(self.configs)
        processes = _same([visit.process for visit in self.visits])
        apart_s = np.abs(at_s[:, None] - at_s[None, :])
        covariance: Array = (
            CONFIG_SPREAD**2 * configs
            + PROCESS_SPREAD**2 * processes
            + CONFIG_SPREAD**2  # of all configs together: only differences are wanted
            + spreads.is_paced * SLOPE_SPREAD**2 * self._paces @ self._paces.T
            + spreads.drift**2 * np.exp(-apart_s / spreads.drift_time_s)
            + np.diag(self._noise_of(spreads))
        )
        return covariance

    def _log_likelihood(self, spreads: Spreads) -> float:
        factor = np.linalg.cholesky(self._covariance_of(spreads))
        left = np.linalg.solve(factor, self._left(spreads))
        return spreads.log_prior - 0.5 * float(left @ left) - float(np.log(np.diag(factor)).sum())


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
