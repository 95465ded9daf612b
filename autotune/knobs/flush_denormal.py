"""The flush_denormal knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob, Scope
from autotune.profile import Profile

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class FlushDenormal(Knob):
    """Treat numbers too small for full precision as 0: CPUs compute with such ones slowly."""

    name = "flush_denormal"
    scope = Scope.RESTART  # torch's threads take the mode over from the thread that starts them
    value_type = bool

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:  # noqa: ARG002
        """Return both ways on a CPU."""
        if profile.device != "cpu":
            return NotOffered(f"the model computes on the {profile.device} device")
        return Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return what the program's own arithmetic was seen to do."""
        return profile.flush_denormal

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Set torch.set_flush_denormal."""
        seams.process.switch(self.name, value)
