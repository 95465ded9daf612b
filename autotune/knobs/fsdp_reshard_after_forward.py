"""The fsdp_reshard_after_forward knob."""

from __future__ import annotations

from autotune.knobs.base import Here, StrategyOption
from autotune.knobs.strategies import in_place_refusal
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import HandKind, Profile


class FsdpReshardAfterForward(StrategyOption):
    """Weights dropped after forward and gathered again for backward: less memory, more traffic.

    Between the two a model that keeps them shows its gathered parameters, which hold no gradients:
    what is cleared through the model then stays.
    """

    name = "fsdp_reshard_after_forward"
    strategies = frozenset({"fsdp"})
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both, where gradients are cleared by optimizers alone."""
        if reason := in_place_refusal(here.hardware, here.profile):
            return NotOffered(reason)
        if here.profile.clears_by_model:
            return NotOffered(
                "the program clears gradients through its model "
                f"({here.profile.clears_by_model}) and "
                "would not reach those of gathered weights"
            )
        for kind in (HandKind.GRADIENTS, HandKind.PARAMETERS):
            if work := here.profile.hand_work(kind):
                return NotOffered(
                    f"the program {kind.value} ({work.evidence}), and would reach gathered weights "
                    "in place of those that are trained"
                )
        return Domain((True, False))

    def current(self, profile: Profile) -> KnobValue:
        """Return that they are dropped, of the outermost module as well."""
        return True
