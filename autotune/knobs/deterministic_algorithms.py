"""The deterministic_algorithms knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class DeterministicAlgorithms(Knob):
    """Slower kernels that give the same bits in each run; searched where the user names it."""

    name = "deterministic_algorithms"
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return nothing: a program that has them on wants them."""
        if not here.profile.deterministic_algorithms:
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
        seams.set_torch(self.name, value)
