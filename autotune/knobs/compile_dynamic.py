"""The knob ``compile_dynamic``: whether compiled code handles changing shapes.

It acts only where the knob ``compile`` compiles the model.

Source: PyTorch documentation, ``torch.compile`` (``dynamic``).
"""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Scope, Seams
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile

DYNAMIC = {"auto": None, "never": False, "always": True}


class CompileDynamic(Knob):
    """Whether compiled code handles changing shapes: never, always, or as torch decides (auto).

    never compiles again for each new shape and gives the fastest code for few shapes; always avoids
    recompilations where shapes vary. auto compiles for one shape first and for any shape once a
    second one appears.
    """

    name = "compile_dynamic"
    scope = Scope.RESTART  # compiled code stays in the process
    value_type = str
    choices = tuple(DYNAMIC)

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return the three values of ``torch.compile(dynamic=...)`` if the device can compile."""
        if here.profile.model.is_compiled:
            return NotOffered("the program compiles its model itself")
        if here.profile.device == "cpu" and not here.hardware.has_cxx_compiler:
            return NotOffered("compiling for the CPU needs a C++ compiler (install g++)")
        return Domain(self.choices)

    def current(self, profile: Profile) -> KnobValue:
        """Return auto, which is PyTorch's default."""
        return "auto"

    def is_active(self, config: Config) -> bool:
        """Return whether the model is compiled: eager code accepts any shape."""
        return config.get("compile", "off") != "off"

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Set ``dynamic`` for the compilation of the outermost modules."""
        seams.set_compile_dynamic(dynamic=DYNAMIC[str(value)])
