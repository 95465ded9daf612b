"""Gradient noise: how many samples a step can use before more of them bring little.

The mean gradient of a batch differs from that of all data by noise, whose variance falls with the
size of the batch. The *noise scale* is the size at which noise and gradient are equal (McCandlish
et al. 2018, "An Empirical Model of Large-Batch Training", section 2.2). Much smaller batches make
as much progress per sample as any; of much larger ones each further sample adds little.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.measurement.interval import Interval
from autotune.measurement.learning.training_trace import GradientGroup

LEAST_GROUPS = 4
RESAMPLES = 1000
SEED = 0
MOST = 1e9  # samples; stands for a gradient that cannot be told from noise


def noise_scale(groups: Sequence[GradientGroup]) -> Interval | None:
    """Return the noise scale in samples with its bootstrapped interval of 95 %.

    The two unbiased estimates of McCandlish et al. 2018, appendix A.1, are averaged over the groups
    before they are divided. Each group is weighed by its gradients' size, which changes little from
    group to group.

    Args:
        groups: Of consecutive steps of one training.

    Returns:
        None of too few groups.
    """
    if len(groups) < LEAST_GROUPS:
        return None
    pairs = np.array([_estimates(group) for group in groups])
    dice = np.random.default_rng(SEED)
    drawn = dice.integers(0, len(pairs), (RESAMPLES, len(pairs)))
    ratios = [_ratio(pairs[numbers]) for numbers in drawn]
    low, high = np.quantile(ratios, (0.025, 0.975))
    return Interval(_ratio(pairs), float(low), float(high))


def _estimates(group: GradientGroup) -> tuple[float, float]:
    """Return the variance of one sample's gradient, and the squared norm of the true gradient."""
    parts, rest = group.parts, group.parts - 1
    variance = (group.mean_square - group.square_of_mean) * parts / rest * group.samples
    return variance, (parts * group.square_of_mean - group.mean_square) / rest


def _ratio(pairs: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> float:
    variance, square = pairs.mean(axis=0).tolist()
    return min(MOST, variance / square) if square > 0 else MOST
