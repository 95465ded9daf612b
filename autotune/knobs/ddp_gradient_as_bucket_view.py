"""The ddp_gradient_as_bucket_view knob."""

from __future__ import annotations

from autotune.knobs.base import Here, StrategyOption
from autotune.knobs.strategies import ddp_refusal
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class DdpGradientAsBucketView(StrategyOption):
    """Gradients that lie in DDP's buckets: one copy less of each, and less memory."""

    name = "ddp_gradient_as_bucket_view"
    strategies = frozenset({"ddp", "zero1", "own"})
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both."""
        if reason := ddp_refusal(here.hardware, here.profile):
            return NotOffered(reason)
        return Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return torch's default."""
        return False
