"""The ddp_static_graph knob."""

from __future__ import annotations

from autotune.config import Config, KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import StrategyOption
from autotune.profile import Profile
from autotune.strategies import ddp_refusal


class DdpStaticGraph(StrategyOption):
    """DDP told that each step uses the same parameters: it plans its sendings by the first."""

    name = "ddp_static_graph"
    strategies = frozenset({"ddp", "zero1", "own"})
    value_type = bool

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return both."""
        if reason := ddp_refusal(hardware, profile):
            return NotOffered(reason)
        return Domain((False, True))

    def conflict(self, config: Config) -> str | None:
        """The first pass of an accumulated step would already be sent."""
        accumulates = int(config.get("accumulation_steps", 1)) > 1
        if config.get(self.name) is True and accumulates and config.get("strategy") != "own":
            return "DDP's static graph wants its first pass sent, accumulation_steps holds it back."
        return None

    def current(self, profile: Profile) -> KnobValue:  # noqa: ARG002
        """Return torch's default."""
        return False
