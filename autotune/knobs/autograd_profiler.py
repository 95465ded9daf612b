"""The knob ``autograd_profiler``: whether a profiler that the script started keeps recording.

Recording each operator slows down training and needs ever more memory.
"""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Scope, Seams
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class AutogradProfiler(Knob):
    """A PyTorch profiler that the script left on; false stops it when training begins.

    The script still gets what the profiler had recorded until then.
    """

    name = "autograd_profiler"
    scope = Scope.RESTART  # torch cannot resume a profile
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both values for a program in which a profiler records."""
        return (
            Domain((True, False))
            if here.profile.settings.autograd_profiler
            else NotOffered("it is off")
        )

    def current(self, profile: Profile) -> KnobValue:
        """Return whether a profiler records."""
        return profile.settings.autograd_profiler

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Stop the program's profiler just before the first step if the value is False.

        The program's set-up code starts the profiler, so it cannot be stopped earlier.
        """
        seams.set_torch("autograd_profiler", bool(value))
