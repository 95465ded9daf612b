"""The optimizer_implementation knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob
from autotune.profile import Profile

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class OptimizerImplementation(Knob):
    """How an optimizer walks its parameters: one by one, in lists, or in one fused kernel."""

    name = "optimizer_implementation"
    value_type = str
    choices = ("for-loop", "foreach", "fused")

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:  # noqa: ARG002
        """Return what every optimizer of the program has for this device."""
        if refusal := profile.without_optimizer("and no optimizer walks through them"):
            return refusal
        offers = [set(optimizer.implementations) for optimizer in profile.optimizers]
        common = set.intersection(*offers) if offers else set()
        if len(common) < 2:
            names = " and ".join(optimizer.name for optimizer in profile.optimizers)
            return NotOffered(f"{names} has one implementation here")
        if len({optimizer.implementation for optimizer in profile.optimizers}) > 1:
            return NotOffered("the program's optimizers differ in it")
        return Domain(tuple(choice for choice in self.choices if choice in common))

    def current(self, profile: Profile) -> KnobValue:
        """Return the one that torch uses now."""
        return profile.optimizers[0].implementation

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Switch all optimizers; their state is carried over."""
        seams.optimizer.use_implementation(str(value))
