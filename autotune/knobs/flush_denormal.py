"""The flush_denormal knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Scope, Seams
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class FlushDenormal(Knob):
    """Treat numbers too small for full precision as 0: CPUs compute with such ones slowly."""

    name = "flush_denormal"
    scope = Scope.RESTART  # torch's threads take the mode over from the thread that starts them
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both ways on a CPU."""
        if here.profile.device != "cpu":
            return NotOffered(f"the model computes on the {here.profile.device} device")
        return Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return what the program's own arithmetic was seen to do."""
        return profile.flush_denormal

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Set torch.set_flush_denormal."""
        seams.set_torch(self.name, value)
