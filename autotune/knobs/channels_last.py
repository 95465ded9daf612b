"""The channels_last knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class ChannelsLast(Knob):
    """Images and convolution weights in NHWC order, which many convolution kernels prefer."""

    name = "channels_last"
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both orders for a model with 2-D convolutions."""
        if not here.profile.conv2d_layers:
            return NotOffered("the model has no 2-D convolution")
        if here.profile.channels_last:
            return NotOffered("the program lays its weights out so itself")
        if here.profile.shared_weight:
            return NotOffered(
                f"the weight {here.profile.shared_weight} shares its memory with others"
            )
        if any("LBFGS" in optimizer.families for optimizer in here.profile.optimizers):
            return NotOffered("LBFGS reads gradients in the order in which they lie in memory")
        return Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return False: a program that uses this layout itself is not offered the knob."""
        return False

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Lay out weights, optimizer state and, from then on, inputs."""
        seams.set_channels_last(enabled=bool(value))
