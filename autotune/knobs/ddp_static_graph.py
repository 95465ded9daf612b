"""The ddp_static_graph knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import Config, KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob, Scope
from autotune.profile import Profile
from autotune.strategies import ddp_refusal

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class DdpStaticGraph(Knob):
    """DDP told that each step uses the same parameters: it plans its sendings by the first."""

    name = "ddp_static_graph"
    scope = Scope.RESTART
    value_type = bool

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return both."""
        if reason := ddp_refusal(hardware, profile):
            return NotOffered(reason)
        return Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:  # noqa: ARG002
        """Return torch's default."""
        return False

    def is_active(self, config: Config) -> bool:
        """Tell whether the strategy wraps the model in DDP."""
        return config.get("strategy") in {"ddp", "zero1", "own", None}

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Pass it to the strategy."""
        seams.distribution.request(ddp_static_graph=bool(value))
