"""The world_size knob."""

from __future__ import annotations

from dataclasses import replace

from autotune.config import Config, KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob, Scope
from autotune.profile import Profile
from autotune.program import LaunchPlan
from autotune.strategies import STRATEGIES, ddp_refusal, devices_of, starts_them_itself


class WorldSize(Knob):
    """Ranks that train together, each on a device or cores of its own; the batch is per rank."""

    name = "world_size"
    scope = Scope.RESTART
    value_type = int
    minimum = 1

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return the doublings of one up to all devices: GPUs, or cores."""
        if profile.starts_ranks:
            return NotOffered(starts_them_itself(profile))
        if profile.distributes_itself != "torch.distributed" and (
            reason := ddp_refusal(hardware, profile)
        ):
            return NotOffered(reason)
        most = max(1, devices_of(hardware, profile))
        counts = {1 << power for power in range(most.bit_length())}
        return Domain(tuple(sorted(counts | {most, profile.world_size})))

    def current(self, profile: Profile) -> KnobValue:
        """Return the ranks that the program is started with."""
        return profile.world_size

    def refusal(self, value: KnobValue, hardware: Hardware, profile: Profile) -> str | None:
        """Return that there are not as many devices."""
        most = devices_of(hardware, profile)
        if int(value) > most:
            return f"{value} ranks need as many devices of their own, and there are {most}"
        return None

    def is_active(self, config: Config) -> bool:
        """Tell whether the strategy has ranks."""
        return STRATEGIES[str(config.get("strategy", "ddp"))].launches_ranks

    def launch(self, value: KnobValue, plan: LaunchPlan) -> LaunchPlan:
        """Start as many ranks."""
        return replace(plan, ranks=int(value))
