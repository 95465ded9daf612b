"""The interop_threads knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob, Scope
from autotune.profile import Profile

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class InteropThreads(Knob):
    """Threads on which torch runs independent operators of torch.jit.fork side by side."""

    name = "interop_threads"
    scope = Scope.RESTART  # torch fixes their number when the first of them starts
    value_type = int
    minimum = 1

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return one thread beside as many as there are cores."""
        if profile.device != "cpu":
            return NotOffered(f"the model computes on the {profile.device} device")
        if hardware.cpu_quota == 1:
            return NotOffered("there is one core")
        return Domain((1, hardware.cpu_quota))

    def current(self, profile: Profile) -> KnobValue:
        """Return torch's threads when training began."""
        return profile.interop_threads

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Set torch's inter-op threads before the program does anything."""
        seams.process.set_interop_threads(int(value))
