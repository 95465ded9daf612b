"""The ddp_bucket_cap_mb knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import Config, KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob, Scope
from autotune.profile import Profile
from autotune.strategies import ddp_refusal

TORCH_OWN = 25  # MiB, torch.nn.parallel.DistributedDataParallel

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class DdpBucketCapMb(Knob):
    """MiB of gradients that DDP sends together: few large sendings, or early small ones."""

    name = "ddp_bucket_cap_mb"
    scope = Scope.RESTART
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

    def is_active(self, config: Config) -> bool:
        """Tell whether the strategy wraps the model in DDP."""
        return config.get("strategy") in {"ddp", "zero1", "own", None}

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Pass it to the strategy."""
        seams.distribution.request(ddp_bucket_cap_mb=int(value))
