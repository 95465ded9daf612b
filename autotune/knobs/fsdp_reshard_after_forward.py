"""The fsdp_reshard_after_forward knob."""

from __future__ import annotations

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import StrategyOption
from autotune.profile import HandKind, Profile
from autotune.strategies import in_place_refusal


class FsdpReshardAfterForward(StrategyOption):
    """Weights dropped after forward and gathered again for backward: less memory, more traffic.

    Between the two a model that keeps them shows its gathered parameters, which hold no gradients:
    what is cleared through the model then stays.
    """

    name = "fsdp_reshard_after_forward"
    strategies = frozenset({"fsdp"})
    value_type = bool

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return both, where gradients are cleared by optimizers alone."""
        if reason := in_place_refusal(hardware, profile):
            return NotOffered(reason)
        if profile.clears_by_model:
            return NotOffered(
                f"the program clears gradients through its model ({profile.clears_by_model}) and "
                "would not reach those of gathered weights"
            )
        for kind in (HandKind.GRADIENTS, HandKind.PARAMETERS):
            if work := profile.hand_work(kind):
                return NotOffered(
                    f"the program {kind.value} ({work.evidence}), and would reach gathered weights "
                    "in place of those that are trained"
                )
        return Domain((True, False))

    def current(self, profile: Profile) -> KnobValue:  # noqa: ARG002
        """Return that they are dropped, of the outermost module as well."""
        return True
