"""The channels_last knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob
from autotune.profile import Profile

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class ChannelsLast(Knob):
    """Images and convolution weights in NHWC order, which many convolution kernels prefer."""

    name = "channels_last"
    value_type = bool

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:  # noqa: ARG002
        """Return both orders for a model with 2-D convolutions."""
        if not profile.conv2d_layers:
            return NotOffered("the model has no 2-D convolution")
        if profile.channels_last:
            return NotOffered("the program lays its weights out so itself")
        if profile.shared_weight:
            return NotOffered(f"the weight {profile.shared_weight} shares its memory with others")
        if any("LBFGS" in optimizer.families for optimizer in profile.optimizers):
            return NotOffered("LBFGS reads gradients in the order in which they lie in memory")
        return Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:  # noqa: ARG002
        """Return False: a program that uses this layout itself is not offered the knob."""
        return False

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Lay out weights, optimizer state and, from then on, inputs."""
        seams.forward.set_channels_last(enabled=bool(value))
