"""The compile knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob, Scope
from autotune.profile import Profile

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class Compile(Knob):
    """torch.compile on the model; costs seconds to minutes at the start of each run."""

    name = "compile"
    scope = Scope.RESTART
    value_type = str
    choices = ("off", "default")

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return off and default where a back end can run."""
        if profile.own_compile:
            return NotOffered("the program compiles its model itself")
        if profile.device == "cpu" and not hardware.has_cxx_compiler:
            return NotOffered("compiling for the CPU needs a C++ compiler (install g++)")
        return Domain(("off", "default"))

    def current(self, profile: Profile) -> KnobValue:  # noqa: ARG002
        """Return off: a program that compiles is not offered this knob."""
        return "off"

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Have the root modules compiled once they are known."""
        seams.forward.set_compile(enabled=value == "default")
