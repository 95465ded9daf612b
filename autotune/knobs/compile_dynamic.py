"""The compile_dynamic knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import Config, KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob, Scope
from autotune.profile import Profile

if TYPE_CHECKING:
    from autotune.inside.seams import Seams

DYNAMIC = {"auto": None, "never": False, "always": True}


class CompileDynamic(Knob):
    """Shapes in compiled code: one code per shape (never), one for all (always), or torch's way."""

    name = "compile_dynamic"
    scope = Scope.RESTART
    value_type = str
    choices = tuple(DYNAMIC)

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return the three of ``torch.compile(dynamic=...)``."""
        if profile.own_compile:
            return NotOffered("the program compiles its model itself")
        if profile.device == "cpu" and not hardware.has_cxx_compiler:
            return NotOffered("nothing can be compiled here (compile)")
        return Domain(self.choices)

    def current(self, profile: Profile) -> KnobValue:  # noqa: ARG002
        """Return torch's default."""
        return "auto"

    def is_active(self, config: Config) -> bool:
        """Only compiled code has shapes built in."""
        return config.get("compile", "off") != "off"

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Say how the root modules are to be compiled."""
        seams.forward.shape(dynamic=DYNAMIC[str(value)])
