"""The fsdp_mixed_precision knob."""

from __future__ import annotations

from autotune.knobs.base import Here, StrategyOption
from autotune.knobs.strategies import in_place_refusal
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class FsdpMixedPrecision(StrategyOption):
    """FSDP computes and gathers in bf16 and averages gradients in fp32; kept weights stay fp32."""

    name = "fsdp_mixed_precision"
    strategies = frozenset({"fsdp"})
    value_type = str
    choices = ("fp32", "bf16")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both, where bf16 is native."""
        if reason := in_place_refusal(here.hardware, here.profile):
            return NotOffered(reason)
        native = here.hardware.supports_bf16_gpu or (
            here.profile.device == "cpu" and here.hardware.supports_bf16_cpu
        )
        if not native:
            return NotOffered("bf16 would be emulated here")
        return Domain(("fp32", "bf16"))

    def current(self, profile: Profile) -> KnobValue:
        """Return that it computes in the weights' dtype."""
        return "fp32"
