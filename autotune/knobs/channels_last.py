"""The knob ``channels_last``: the memory layout of images and convolution weights.

Source: PyTorch tutorials, "Channels Last Memory Format in PyTorch".
"""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class ChannelsLast(Knob):
    """Store images and convolution weights in NHWC order, which many convolution kernels prefer.

    It helps convolutional networks most, above all on GPUs with tensor cores together with lower
    precision. Models with few convolutions can become slower, because operators without NHWC
    kernels convert their inputs.
    """

    name = "channels_last"
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both layouts for a model with 2-D convolutions.

        Refused are programs that use NHWC already, and LBFGS.
        """
        if not here.profile.model.conv2d_layers:
            return NotOffered("the model has no 2-D convolution")
        if here.profile.model.channels_last:
            return NotOffered("the program already uses this layout")
        if any("LBFGS" in optimizer.families for optimizer in here.profile.optimizers):
            return NotOffered("LBFGS reads gradients in the order in which they lie in memory")
        return Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return False: a program that uses this layout itself is not offered the knob."""
        return False

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Convert weights, gradients and optimizer state now, and inputs from the next step on."""
        seams.set_channels_last(enabled=bool(value))
