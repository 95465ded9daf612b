"""The ddp_static_graph knob."""

from __future__ import annotations

from autotune.knobs.base import Here, StrategyOption
from autotune.knobs.strategies import ddp_refusal
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class DdpStaticGraph(StrategyOption):
    """DDP told that each step uses the same parameters: it plans its sendings by the first."""

    name = "ddp_static_graph"
    strategies = frozenset({"ddp", "zero1", "own"})
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both."""
        if reason := ddp_refusal(here.hardware, here.profile):
            return NotOffered(reason)
        return Domain((False, True))

    def conflict(self, config: Config) -> str | None:
        """The first pass of an accumulated step would already be sent."""
        accumulates = int(config.get("accumulation_steps", 1)) > 1
        if config.get(self.name) is True and accumulates and config.get("strategy") != "own":
            return "DDP's static graph wants its first pass sent, accumulation_steps holds it back."
        return None

    def current(self, profile: Profile) -> KnobValue:
        """Return torch's default."""
        return False
