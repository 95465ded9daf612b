"""The fsdp_mixed_precision knob."""

from __future__ import annotations

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import StrategyOption
from autotune.profile import Profile
from autotune.strategies import in_place_refusal


class FsdpMixedPrecision(StrategyOption):
    """FSDP computes and gathers in bf16 and averages gradients in fp32; kept weights stay fp32."""

    name = "fsdp_mixed_precision"
    strategies = frozenset({"fsdp"})
    value_type = str
    choices = ("fp32", "bf16")

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return both, where bf16 is native."""
        if reason := in_place_refusal(hardware, profile):
            return NotOffered(reason)
        native = hardware.supports_bf16_gpu or (
            profile.device == "cpu" and hardware.supports_bf16_cpu
        )
        if not native:
            return NotOffered("bf16 would be emulated here")
        return Domain(("fp32", "bf16"))

    def current(self, profile: Profile) -> KnobValue:  # noqa: ARG002
        """Return that it computes in the weights' dtype."""
        return "fp32"
