"""The zero_grad_to_none knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class ZeroGradToNone(Knob):
    """Let zero_grad() drop gradients instead of writing zeros, where the script asks for zeros."""

    name = "zero_grad_to_none"
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both ways for a program that passes set_to_none=False."""
        if refusal := here.profile.without_optimizer("and may read a gradient that is not there"):
            return refusal
        if here.profile.zero_grad_to_none is not False:
            return NotOffered("the program does not ask for zeros, torch drops gradients already")
        return Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return what the program asks for."""
        return profile.zero_grad_to_none is not False

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Drop gradients where the program asks for zeros."""
        seams.set_zero_grad_to_none(enabled=bool(value))
