"""The optimizer_implementation knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class OptimizerImplementation(Knob):
    """How an optimizer walks its parameters: one by one, in lists, or in one fused kernel."""

    name = "optimizer_implementation"
    value_type = str
    choices = ("for-loop", "foreach", "fused")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return what every optimizer of the program has for this device."""
        if refusal := here.profile.without_optimizer("and no optimizer walks through them"):
            return refusal
        offers = [set(optimizer.implementations) for optimizer in here.profile.optimizers]
        common = set.intersection(*offers) if offers else set()
        if len(common) < 2:
            names = " and ".join(optimizer.name for optimizer in here.profile.optimizers)
            return NotOffered(f"{names} has one implementation here")
        if len({optimizer.implementation for optimizer in here.profile.optimizers}) > 1:
            return NotOffered("the program's optimizers differ in it")
        return Domain(tuple(choice for choice in self.choices if choice in common))

    def current(self, profile: Profile) -> KnobValue:
        """Return the one that torch uses now."""
        return profile.optimizers[0].implementation

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Switch all optimizers; their state is carried over."""
        seams.set_optimizer_implementation(str(value))
