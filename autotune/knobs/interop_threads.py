"""The interop_threads knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Scope, Seams
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class InteropThreads(Knob):
    """Threads on which torch runs independent operators of torch.jit.fork side by side."""

    name = "interop_threads"
    scope = Scope.RESTART  # torch fixes their number when the first of them starts
    value_type = int
    minimum = 1

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return one thread beside as many as there are cores."""
        if here.profile.device != "cpu":
            return NotOffered(f"the model computes on the {here.profile.device} device")
        if here.hardware.cpu_quota == 1:
            return NotOffered("there is one core")
        return Domain((1, here.hardware.cpu_quota))

    def current(self, profile: Profile) -> KnobValue:
        """Return torch's threads when training began."""
        return profile.interop_threads

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Set torch's inter-op threads before the program does anything."""
        seams.set_interop_threads(int(value))
