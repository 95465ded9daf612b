"""The deterministic_algorithms knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob
from autotune.profile import Profile

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class DeterministicAlgorithms(Knob):
    """Slower kernels that give the same bits in each run; searched where the user names it."""

    name = "deterministic_algorithms"
    value_type = bool

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:  # noqa: ARG002
        """Return nothing: a program that has them on wants them."""
        if not profile.deterministic_algorithms:
            return NotOffered("they are off")
        return NotOffered(
            f"the program asks for them; --tune {self.name} tries it without",
            by_name=Domain((False, True)),
        )

    def current(self, profile: Profile) -> KnobValue:
        """Return the program's own setting."""
        return profile.deterministic_algorithms

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Switch them, for torch and for cuDNN."""
        seams.process.switch(self.name, value)
