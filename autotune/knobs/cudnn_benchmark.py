"""The cudnn_benchmark knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob
from autotune.profile import Profile

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class CudnnBenchmark(Knob):
    """Let cuDNN try its convolution algorithms on each new input shape and keep the fastest."""

    name = "cudnn_benchmark"
    value_type = bool

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:  # noqa: ARG002
        """Return both ways for a model with 2-D convolutions on a GPU."""
        if profile.device != "cuda":
            return NotOffered(f"the model is on the {profile.device} device, cuDNN serves CUDA")
        if not profile.conv2d_layers:
            return NotOffered("the model has no 2-D convolution")
        return Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return the program's own setting."""
        return profile.cudnn_benchmark

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Set torch.backends.cudnn.benchmark."""
        seams.process.switch(self.name, value)
