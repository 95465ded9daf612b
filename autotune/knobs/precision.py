"""The precision knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob
from autotune.profile import Profile

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class Precision(Knob):
    """fp32 as written, or bf16 autocast around the model with fp32 outputs and weights."""

    name = "precision"
    value_type = str
    choices = ("fp32", "bf16")

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return bf16 beside fp32 where the hardware multiplies it natively."""
        if profile.own_autocast:
            return NotOffered(f"the program uses autocast itself ({profile.own_autocast})")
        if profile.device == "cpu" and not hardware.supports_bf16_cpu:
            return NotOffered("this CPU has no bf16 instructions and would emulate them")
        if profile.device == "cuda" and hardware.gpus and not hardware.supports_bf16_gpu:
            return NotOffered("bf16 needs compute capability 8.0 or later")
        return Domain(("fp32", "bf16"))

    def current(self, profile: Profile) -> KnobValue:  # noqa: ARG002
        """Return fp32: a program with its own autocast is not offered this knob."""
        return "fp32"

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Enter autocast around each outermost module call, or stop doing so."""
        seams.forward.set_autocast(enabled=value == "bf16")
