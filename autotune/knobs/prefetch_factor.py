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
DEPTHS = (TORCH_DEFAULT, 4, 8)
MAX_SHARE_OF_EPOCH = 1 / 8  # seen: 16 of 23 batches took 5 s to settle and gained nothing


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

        Buffers are refilled in each epoch, so that of one worker is at most an eighth of it.
        """
        if refusal := here.profile.without_workers:
            return refusal
        loader = here.profile.loaders[0]
        if not loader.dataset_len or not loader.batch_size:
            return Domain(DEPTHS)
        most = loader.dataset_len / loader.batch_size * MAX_SHARE_OF_EPOCH
        fitting = tuple(depth for depth in DEPTHS if depth == TORCH_DEFAULT or depth <= most)
        alone = "" if len(fitting) > 1 else "a deeper buffer would hold much of an epoch"
        return Domain(fitting, alone)

    def current(self, profile: Profile) -> KnobValue:
        """Return the loader's value; without workers, the default that it would get with them."""
        return profile.loaders[0].prefetch_factor or TORCH_DEFAULT
