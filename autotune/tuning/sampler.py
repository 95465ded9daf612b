"""Sampler: which config Optuna proposes next.

All use of Optuna's samplers is here; ``Study`` is the only caller.
"""

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
    """Return the sampler: multivariate TPE, because the effects of knobs depend on each other.

    Args:
        seed: Seed of its random choices.
    """
    with warnings.catch_warnings():  # multivariate is marked as experimental
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return TPESampler(
            seed=seed,
            n_startup_trials=STARTUP_TRIALS,
            multivariate=True,
            constant_liar=False,  # it serves parallel trials; here one runs at a time
        )


def holding(sampler: BaseSampler, fixed: Mapping[str, KnobValue]) -> BaseSampler:
    """Return a sampler that proposes only configs with these values.

    ``Study.propose()`` holds the restart knobs, so that the open rig can run each proposal.

    Args:
        sampler: The sampler to restrict.
        fixed: Values by knob; empty leaves the sampler unrestricted.
    """
    if not fixed:
        return sampler
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return PartialFixedSampler(dict(fixed), sampler)


def distributions(space: ResolvedSpace) -> dict[str, BaseDistribution]:
    """Return the search space in Optuna's form: each free knob as a categorical parameter.

    Numeric knobs are categorical too, because only the listed values are allowed.
    """
    return {n: CategoricalDistribution(d.values) for n, d in space.domains.items()}
