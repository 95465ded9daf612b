"""The knob ``in_order``: whether batches arrive in the sampler's order.

Source: PyTorch documentation, ``torch.utils.data.DataLoader`` (``in_order``).
"""

from __future__ import annotations

from autotune.knobs.base import Here, WorkerOption
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class InOrder(WorkerOption):
    """Whether batches arrive in the sampler's order; false lets ready batches pass a slow one.

    False helps where the loading time differs much between batches. The model then sees the batches
    of an epoch in an order that varies from run to run.
    """

    name = "in_order"
    value_type = bool
    changes_learning = True  # the samples of a step are others, each time

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both values for a program with one training loader that can use workers.

        Refused are programs that train from several loaders.
        """
        return here.profile.without_workers or Domain((True, False))

    def current(self, profile: Profile) -> KnobValue:
        """Return the setting of the (first) training loader."""
        return profile.loaders[0].in_order

    def is_active(self, config: Config) -> bool:
        """Return whether at least two workers load: fewer always deliver in order."""
        return int(config.get("num_workers", 2)) > 1
