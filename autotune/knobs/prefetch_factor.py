"""The knob ``prefetch_factor``: batches that each worker loads in advance.

Source: PyTorch documentation, ``torch.utils.data.DataLoader`` (``prefetch_factor``). A loader
without workers has no such setting.
"""

from __future__ import annotations

from autotune.knobs.base import Here, WorkerOption
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile

TORCH_DEFAULT = 2  # of torch.utils.data.DataLoader with workers; without workers it is None


class PrefetchFactor(WorkerOption):
    """Number of batches that each worker loads ahead of the training step.

    A deeper buffer evens out batches whose loading time varies. It does not help where workers are
    slower than the training step on average, and it costs host memory: the loader holds up to
    ``num_workers * prefetch_factor`` batches.
    """

    name = "prefetch_factor"
    value_type = int
    minimum = 1

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return PyTorch's default of 2 and two deeper buffers.

        Refused where the program changes the sampler during an epoch: prefetched batches would
        follow the old order.
        """
        return here.profile.without_workers or here.profile.ahead_of_order or Domain((2, 4, 8))

    def current(self, profile: Profile) -> KnobValue:
        """Return the loader's value; without workers, the default that it would get with them."""
        return profile.loaders[0].prefetch_factor or TORCH_DEFAULT
