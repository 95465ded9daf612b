"""The fsdp_reshard_after_forward knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import Config, KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob, Scope
from autotune.profile import Profile
from autotune.strategies import fsdp_refusal

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class FsdpReshardAfterForward(Knob):
    """Weights dropped after forward and gathered again for backward: less memory, more traffic."""

    name = "fsdp_reshard_after_forward"
    scope = Scope.RESTART
    value_type = bool

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return both."""
        if reason := fsdp_refusal(hardware, profile):
            return NotOffered(reason)
        return Domain((True, False))

    def current(self, profile: Profile) -> KnobValue:  # noqa: ARG002
        """Return torch's default for all but the outermost module."""
        return True

    def is_active(self, config: Config) -> bool:
        """Tell whether the strategy is fsdp."""
        return config.get("strategy") == "fsdp"

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Pass it to the strategy."""
        seams.distribution.request(fsdp_reshard_after_forward=bool(value))
