"""The compile_dynamic knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Scope, Seams
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile

DYNAMIC = {"auto": None, "never": False, "always": True}


class CompileDynamic(Knob):
    """Shapes in compiled code: one code per shape (never), one for all (always), or torch's way."""

    name = "compile_dynamic"
    scope = Scope.RESTART
    value_type = str
    choices = tuple(DYNAMIC)

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return the three of ``torch.compile(dynamic=...)``."""
        if here.profile.program_compile:
            return NotOffered("the program compiles its model itself")
        if here.profile.device == "cpu" and not here.hardware.has_cxx_compiler:
            return NotOffered("nothing can be compiled here (compile)")
        return Domain(self.choices)

    def current(self, profile: Profile) -> KnobValue:
        """Return torch's default."""
        return "auto"

    def is_active(self, config: Config) -> bool:
        """Only compiled code has shapes built in."""
        return config.get("compile", "off") != "off"

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Say how the root modules are to be compiled."""
        seams.set_compile_dynamic(dynamic=DYNAMIC[str(value)])
