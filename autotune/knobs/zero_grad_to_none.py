"""The zero_grad_to_none knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob
from autotune.profile import Profile

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class ZeroGradToNone(Knob):
    """Let zero_grad() drop gradients instead of writing zeros, where the script asks for zeros."""

    name = "zero_grad_to_none"
    value_type = bool

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:  # noqa: ARG002
        """Return both ways for a program that passes set_to_none=False."""
        if refusal := profile.without_optimizer("and may read a gradient that is not there"):
            return refusal
        if profile.zero_grad_to_none is not False:
            return NotOffered("the program does not ask for zeros, torch drops gradients already")
        return Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return what the program asks for."""
        return profile.zero_grad_to_none is not False

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Drop gradients where the program asks for zeros."""
        seams.clearing.drop_zeros(enabled=bool(value))
