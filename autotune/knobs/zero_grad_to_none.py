"""The knob ``zero_grad_to_none``: whether ``zero_grad()`` drops gradients or fills them with zeros.

Source: PyTorch documentation, ``torch.optim.Optimizer.zero_grad`` (``set_to_none``). The work is
done by ``inside.seams.clearing``.
"""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class ZeroGradToNone(Knob):
    """Let zero_grad() drop gradients where the script asks it to fill them with zeros.

    Dropping saves the write of zeros and one addition per gradient, and memory until the backward
    pass. A parameter that gets no gradient in a step still gets the zeros before the optimizer's
    step, so momentum and weight decay act as in the script.
    """

    name = "zero_grad_to_none"
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both values for a program that passes ``set_to_none=False``.

        Other programs drop gradients already, because that is PyTorch's default.
        """
        if refusal := here.profile.without_optimizer(", and may read a gradient that is not there"):
            return refusal
        # None stands for a program that never calls zero_grad().
        if here.profile.loop.zero_grad_to_none is not False:
            return NotOffered(
                "the program does not ask for zeros, so torch drops gradients already"
            )
        return Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return whether the program lets ``zero_grad()`` drop gradients."""
        return profile.loop.zero_grad_to_none is not False

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Change what ``zero_grad()`` does where the program asks for zeros."""
        seams.set_zero_grad_to_none(enabled=bool(value))
