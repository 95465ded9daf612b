"""Batch effect: how gradients and losses answered to another batch size."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Gradient norms grow by a power of the batch growth. The exponent is -1/2 to 0 for the mean of a
# batch and 1/2 to 1 for its sum; this threshold lies between the two.
BETWEEN_MEAN_AND_SUM = 0.25


@dataclass(frozen=True)
class BatchEffect:
    """How the steps of a program changed with the batch size, at the same learning rate.

    It tells whether the loss is a mean or a sum over samples, which decides how the learning rate
    has to be scaled.

    Attributes:
        batch_growth: Ratio of the batch sizes (after / before).
        gradient_growth: Ratio of the median gradient norms; None if it is undefined.
        loss_growth: Ratio of the median losses; None if it is undefined.
        unmoved: Class name of a module that still receives the old number of samples; empty if all
            modules received the new batch.
    """

    batch_growth: float
    gradient_growth: float | None
    loss_growth: float | None
    unmoved: str = ""

    @property
    def sums(self) -> bool | None:
        """Whether gradients grow with the batch; None if the evidence is missing or contradictory.

        If the batch grows by g, the gradient of a mean changes by a factor of 1/sqrt(g) to 1,
        depending on its noise, and that of a sum by sqrt(g) to g. Over a few steps the norms vary
        by a similar amount, so the loss has to agree if its ratio is defined.
        """
        signs = [
            math.log(growth) / math.log(self.batch_growth) > BETWEEN_MEAN_AND_SUM
            for growth in (self.gradient_growth, self.loss_growth)
            if growth is not None and math.isfinite(growth)
        ]
        return signs[0] if len(set(signs)) == 1 else None
