"""The fsdp_mixed_precision knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import Config, KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob, Scope
from autotune.profile import Profile
from autotune.strategies import fsdp_refusal

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class FsdpMixedPrecision(Knob):
    """FSDP computes and gathers in bf16 and averages gradients in fp32; kept weights stay fp32."""

    name = "fsdp_mixed_precision"
    scope = Scope.RESTART
    value_type = str
    choices = ("fp32", "bf16")

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return both, where bf16 is native."""
        if reason := fsdp_refusal(hardware, profile):
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

    def is_active(self, config: Config) -> bool:
        """Tell whether the strategy is fsdp."""
        return config.get("strategy") == "fsdp"

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Pass it to the strategy."""
        seams.distribution.request(fsdp_mixed_precision=str(value))
