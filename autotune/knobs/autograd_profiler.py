"""The autograd_profiler knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob, Scope
from autotune.profile import Profile

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class AutogradProfiler(Knob):
    """A profiler that the script left on; off, it stops at the first step and keeps what it has."""

    name = "autograd_profiler"
    scope = Scope.RESTART  # torch cannot resume a profile
    value_type = bool

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:  # noqa: ARG002
        """Return both ways where one was left on."""
        return Domain((True, False)) if profile.profiles else NotOffered("it is off")

    def current(self, profile: Profile) -> KnobValue:
        """Return whether one records."""
        return profile.profiles

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """End its recording when training begins."""
        seams.process.switch("autograd_profiler", bool(value))
