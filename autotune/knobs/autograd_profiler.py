"""The autograd_profiler knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Scope, Seams
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class AutogradProfiler(Knob):
    """A profiler that the script left on; off, it stops at the first step and keeps what it has."""

    name = "autograd_profiler"
    scope = Scope.RESTART  # torch cannot resume a profile
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both ways where one was left on."""
        return Domain((True, False)) if here.profile.profiles else NotOffered("it is off")

    def current(self, profile: Profile) -> KnobValue:
        """Return whether one records."""
        return profile.profiles

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """End its recording when training begins."""
        seams.set_torch("autograd_profiler", bool(value))
