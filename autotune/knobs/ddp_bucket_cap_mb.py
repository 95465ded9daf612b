"""The knob ``ddp_bucket_cap_mb``: the size of DDP's gradient buckets.

It acts on autotune's DDP and on one that the program makes itself.

Source: PyTorch documentation, ``torch.nn.parallel.DistributedDataParallel`` (``bucket_cap_mb``).
"""

from __future__ import annotations

from autotune.knobs.base import Here, StrategyOption
from autotune.knobs.strategies import ddp_refusal
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile

TORCH_OWN = 25  # MiB, the default of torch.nn.parallel.DistributedDataParallel


class DdpBucketCapMb(StrategyOption):
    """Size in MiB of the gradient buckets that DDP averages in one communication.

    Small buckets start early, so that communication overlaps more of the backward pass. Large
    buckets need fewer messages. Which is faster depends on the model and the link between devices.
    """

    name = "ddp_bucket_cap_mb"
    strategies = frozenset({"ddp", "zero1", "own"})
    value_type = int
    minimum = 1

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return PyTorch's default of 25 MiB, a smaller and a larger size, where DDP trains."""
        if reason := ddp_refusal(here.hardware, here.profile):
            return NotOffered(reason)
        return Domain((5, 25, 100))

    def current(self, profile: Profile) -> KnobValue:
        """Return PyTorch's default; a size that the program itself passes to DDP is not known."""
        return TORCH_OWN
