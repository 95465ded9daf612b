"""The knob ``fsdp_mixed_precision``: the dtype in which FSDP gathers weights and computes.

Unlike the knob ``precision`` it also reduces what is sent between ranks.

Source: PyTorch documentation, ``torch.distributed.fsdp.MixedPrecisionPolicy``.
"""

from __future__ import annotations

from autotune.knobs.base import Here, StrategyOption
from autotune.knobs.strategies import in_place_refusal
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class FsdpMixedPrecision(StrategyOption):
    """Compute and gather weights in bf16 under FSDP; stored weights and averaging stay fp32.

    bf16 halves the traffic of gathering and uses bf16 units for the computation, which rounds more
    coarsely. The optimizer still updates fp32 weights with gradients averaged in fp32.
    """

    name = "fsdp_mixed_precision"
    changes_learning = True
    strategies = frozenset({"fsdp"})
    value_type = str
    choices = ("fp32", "bf16")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return fp32 and bf16 where the hardware computes in bf16 natively."""
        if reason := in_place_refusal(here.hardware, here.profile):
            return NotOffered(reason)
        native = here.hardware.supports_bf16_gpu or (
            here.profile.device == "cpu" and here.hardware.supports_bf16_cpu
        )
        if not native:
            return NotOffered("bf16 would be emulated here")
        return Domain(("fp32", "bf16"))

    def current(self, profile: Profile) -> KnobValue:
        """Return fp32: without this knob FSDP computes in the dtype of the weights."""
        return "fp32"
