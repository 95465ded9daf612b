"""Sampler: what Optuna asks for the next config.

A search asks autotune's ``Chooser`` itself, because it also wants the reason.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.search_space import intersection_search_space
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from autotune.errors import UsageError
from autotune.measurement.rounds import Speeds
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain
from autotune.results.record import TrialRecord
from autotune.tuning.choosing.chooser import Chooser, Field

OURS = "autotune"
UNKNOWN_SPREAD = 0.02  # relative, of an objective's value
STARTUP_TRIALS = 6  # random ones, before TPE and GP follow their models


class EffectsSampler(BaseSampler):
    """Samples the next config by a model which knows that knobs' effects mostly add up.

    For categorical parameters, such as the knobs of a training program, and an objective that is a
    speed: a positive number, maximized, or a time that is minimized. The first trial is the
    baseline: enqueue the program's own values, or the first value of each parameter is taken.

    Example:
        >>> study = optuna.create_study(direction="maximize", sampler=EffectsSampler(seed=0))
        >>> study.enqueue_trial({"workers": 0, "precision": "fp32"})
        >>> study.optimize(samples_per_s, n_trials=30)
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed if seed is not None else 0
        self._random = RandomSampler(seed)

    def infer_relative_search_space(
        self, study: optuna.Study, _trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the parameters that all trials so far have."""
        space = intersection_search_space(study.get_trials(deepcopy=False))
        return {n: d for n, d in space.items() if isinstance(d, CategoricalDistribution)}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the values of the config that is worth the next trial."""
        values: dict[str, tuple[KnobValue, ...]] = {
            name: tuple(choice for choice in distribution.choices if choice is not None)
            for name, distribution in search_space.items()
            if isinstance(distribution, CategoricalDistribution)
        }
        done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if not values or not done:
            return {}
        seen = [_log_rate(one, list(values), study.direction) for one in done]
        space = _Free(seen[0][0], {name: Domain(of) for name, of in values.items()})
        choice = Chooser(space, self._seed + trial.number).choose(_field(seen))
        return dict(choice.config) if choice is not None else {}

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return the first value in the first trial, which is the baseline, else a random one."""
        is_first = not study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if is_first and isinstance(param_distribution, CategoricalDistribution):
            return param_distribution.choices[0]
        return self._random.sample_independent(study, trial, param_name, param_distribution)


@dataclass(frozen=True)
class _Free:
    """A space in which every combination of values is allowed and none needs a fresh process."""

    baseline: Config
    domains: Mapping[str, Domain]
    fixed: Mapping[str, KnobValue] = field(default_factory=dict)

    def canonical(self, config: Config) -> Config:
        return config

    def conflicts(self, _config: Config) -> Sequence[str]:
        return ()

    def needs_restart(self, _here: Config, _there: Config) -> bool:
        return False

    def defers(self, _config: Config) -> bool:
        return False


def _log_rate(
    trial: FrozenTrial, names: Sequence[str], direction: StudyDirection
) -> tuple[Config, float]:
    if trial.value is None or trial.value <= 0:
        raise ValueError(f"EffectsSampler needs a positive objective, got {trial.value}")
    log_rate = math.log(trial.value) * (1 if direction is StudyDirection.MAXIMIZE else -1)
    return Config({name: trial.params[name] for name in names}), log_rate


def _field(seen: Sequence[tuple[Config, float]]) -> Field:
    values: dict[Config, list[float]] = {}
    for config, log_rate in seen:
        values.setdefault(config, []).append(log_rate)
    configs = tuple(values)
    means = np.array([fmean(of) for of in values.values()])
    variances = np.array([UNKNOWN_SPREAD**2 / len(of) for of in values.values()])
    covariance = np.diag(variances) + variances[0]
    covariance[0, :] = covariance[:, 0] = 0.0
    speeds = Speeds(configs, means - means[0], covariance) if len(configs) > 1 else None
    records = [TrialRecord(config, "", None, None, None, None, 0.0) for config in configs]
    return Field(records, speeds, best=configs[int(means.argmax())])


def make_sampler(name: str, seed: int) -> BaseSampler:
    """Return a sampler by the name that users give it.

    Raises:
        UsageError: when a library that it needs is not installed.
    """
    with warnings.catch_warnings():  # multivariate is marked as experimental
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        match name:
            case "autotune":
                return EffectsSampler(seed)
            case "tpe":  # multivariate, because the effects of knobs depend on each other
                return TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True)
            case "gp":
                try:
                    return GPSampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
                except ImportError as error:
                    raise UsageError(f"--sampler gp: {error}") from error
            case "random":
                return RandomSampler(seed)
    raise ValueError(f"no sampler is called {name!r}")
