"""Which config Optuna proposes next."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, PartialFixedSampler, TPESampler

from autotune.knobs.space.space import ResolvedSpace
from autotune.program.config import KnobValue

# Moves and combinations come first, so the sampler starts with evidence and needs no random trials
# beyond a handful to widen it.
STARTUP_TRIALS = 6


def make_sampler(seed: int) -> BaseSampler:
    """Return the sampler: joint (multivariate) TPE, because knobs act on each other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return TPESampler(
            seed=seed,
            n_startup_trials=STARTUP_TRIALS,
            multivariate=True,
            constant_liar=False,  # one trial at a time
        )


def holding(sampler: BaseSampler, fixed: Mapping[str, KnobValue]) -> BaseSampler:
    """Return a sampler that proposes only configs with these values: what the open rig can run."""
    if not fixed:
        return sampler
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return PartialFixedSampler(dict(fixed), sampler)


def distributions(space: ResolvedSpace) -> dict[str, BaseDistribution]:
    """Return Optuna's view of the space: every free knob, by its values."""
    return {n: CategoricalDistribution(d.values) for n, d in space.domains.items()}
