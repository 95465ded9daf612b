"""The world_size knob."""

from __future__ import annotations

from dataclasses import replace

from autotune.knobs.base import Here, Knob, Scope
from autotune.knobs.strategies import STRATEGIES, ddp_refusal, devices_of, starts_them_itself
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile
from autotune.program.program import LaunchPlan


class WorldSize(Knob):
    """Ranks that train together, each on a device or cores of its own; the batch is per rank."""

    name = "world_size"
    scope = Scope.RESTART
    value_type = int
    minimum = 1

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return the doublings of one up to all devices: GPUs, or cores."""
        if here.profile.starts_ranks:
            return NotOffered(starts_them_itself(here.profile))
        if here.profile.distributes_itself != "torch.distributed" and (
            reason := ddp_refusal(here.hardware, here.profile)
        ):
            return NotOffered(reason)
        most = max(1, devices_of(here.hardware, here.profile))
        counts = {1 << power for power in range(most.bit_length())}
        return Domain(tuple(sorted(counts | {most, here.profile.world_size})))

    def current(self, profile: Profile) -> KnobValue:
        """Return the ranks that the program is started with."""
        return profile.world_size

    def refusal(self, value: KnobValue, here: Here) -> str | None:
        """Return that there are not as many devices."""
        most = devices_of(here.hardware, here.profile)
        if int(value) > most:
            return f"{value} ranks need as many devices of their own, and there are {most}"
        return None

    def is_active(self, config: Config) -> bool:
        """Tell whether the strategy has ranks."""
        return STRATEGIES[str(config.get("strategy", "ddp"))].launches_ranks

    def launch(self, value: KnobValue, plan: LaunchPlan) -> LaunchPlan:
        """Start as many ranks."""
        return replace(plan, ranks=int(value))
