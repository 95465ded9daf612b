"""The ddp_bucket_cap_mb knob."""

from __future__ import annotations

from autotune.knobs.base import Here, StrategyOption
from autotune.knobs.strategies import ddp_refusal
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile

TORCH_OWN = 25  # MiB, torch.nn.parallel.DistributedDataParallel


class DdpBucketCapMb(StrategyOption):
    """MiB of gradients that DDP sends together: few large sendings, or early small ones."""

    name = "ddp_bucket_cap_mb"
    strategies = frozenset({"ddp", "zero1", "own"})
    value_type = int
    minimum = 1

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return torch's own size and its neighbours."""
        if reason := ddp_refusal(here.hardware, here.profile):
            return NotOffered(reason)
        return Domain((5, 25, 100))

    def current(self, profile: Profile) -> KnobValue:
        """Return torch's own size."""
        return TORCH_OWN
