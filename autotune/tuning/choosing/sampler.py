"""Sampler: what chooses the configs of a search: ``Chooser``, or one of Optuna's samplers.

Command lines import this module, so Optuna is imported late.
"""

from __future__ import annotations

import warnings
from enum import StrEnum
from typing import TYPE_CHECKING

from autotune.errors import UsageError

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

STARTUP_TRIALS = 6  # random ones, before TPE and GP follow their models


class Sampler(StrEnum):
    """What chooses configs: autotune, or one of Optuna's. Users write the values."""

    AUTOTUNE = "autotune"
    TPE = "tpe"
    GP = "gp"
    RANDOM = "random"


def make_sampler(name: Sampler, seed: int) -> BaseSampler | None:
    """Return one of Optuna's samplers; None where autotune chooses.

    Raises:
        UsageError: when a library that it needs is not installed.
    """
    import optuna
    from optuna.samplers import GPSampler, RandomSampler, TPESampler

    with warnings.catch_warnings():  # multivariate is marked as experimental
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        match name:
            case Sampler.AUTOTUNE:
                return None
            case Sampler.TPE:  # multivariate, because the effects of knobs depend on each other
                return TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True)
            case Sampler.GP:
                try:
                    return GPSampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
                except ImportError as error:
                    raise UsageError(f"--sampler gp: {error}") from error
            case Sampler.RANDOM:
                return RandomSampler(seed)
