"""The ddp_bucket_cap_mb knob."""

from __future__ import annotations

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import StrategyOption
from autotune.profile import Profile
from autotune.strategies import ddp_refusal

TORCH_OWN = 25  # MiB, torch.nn.parallel.DistributedDataParallel


class DdpBucketCapMb(StrategyOption):
    """MiB of gradients that DDP sends together: few large sendings, or early small ones."""

    name = "ddp_bucket_cap_mb"
    strategies = frozenset({"ddp", "zero1", "own"})
    value_type = int
    minimum = 1

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return torch's own size and its neighbours."""
        if reason := ddp_refusal(hardware, profile):
            return NotOffered(reason)
        return Domain((5, 25, 100))

    def current(self, profile: Profile) -> KnobValue:  # noqa: ARG002
        """Return torch's own size."""
        return TORCH_OWN
