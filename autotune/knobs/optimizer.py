"""The knob ``optimizer``: how ``torch.optim`` optimizers update their parameters.

Source: PyTorch documentation, ``torch.optim`` ("foreach" and "fused" implementations). Checkpoints
keep the flags that the program gave its optimizers.
"""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class Optimizer(Knob):
    """How the optimizer updates its parameters: one by one, in lists, or in one fused kernel.

    It helps models with many small parameters, where a loop launches many small kernels. foreach
    needs about as much extra memory as the parameters. Results differ only by rounding.
    """

    name = "optimizer"
    value_type = str
    choices = ("for-loop", "foreach", "fused")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return the implementations that every optimizer of the program has for this device.

        Refused are optimizers with a single implementation, and several optimizers that use
        different ones.
        """
        if refusal := here.profile.without_optimizer(", without a torch optimizer"):
            return refusal
        # One value holds for all optimizers, so each of them must have it.
        offers = [set(optimizer.implementations) for optimizer in here.profile.optimizers]
        common = set.intersection(*offers) if offers else set()
        if len(common) < 2:
            names = " and ".join(optimizer.name for optimizer in here.profile.optimizers)
            return NotOffered(f"only one implementation works here for {names}")
        if len({optimizer.implementation for optimizer in here.profile.optimizers}) > 1:
            return NotOffered("the program's optimizers differ in their implementation")
        return Domain(tuple(choice for choice in self.choices if choice in common))

    def current(self, profile: Profile) -> KnobValue:
        """Return the implementation that the program's optimizers use now."""
        return profile.optimizers[0].implementation

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Switch all optimizers, present and future, to this implementation; state is kept."""
        seams.set_optimizer_implementation(str(value))
