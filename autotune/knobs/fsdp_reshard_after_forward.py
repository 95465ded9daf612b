"""The fsdp_reshard_after_forward knob."""

from __future__ import annotations

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import StrategyOption
from autotune.profile import Profile
from autotune.strategies import in_place_refusal


class FsdpReshardAfterForward(StrategyOption):
    """Weights dropped after forward and gathered again for backward: less memory, more traffic."""

    name = "fsdp_reshard_after_forward"
    strategies = frozenset({"fsdp"})
    value_type = bool

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return both."""
        if reason := in_place_refusal(hardware, profile):
            return NotOffered(reason)
        return Domain((True, False))

    def current(self, profile: Profile) -> KnobValue:  # noqa: ARG002
        """Return torch's default for all but the outermost module."""
        return True
