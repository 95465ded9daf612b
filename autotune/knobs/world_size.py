"""The knob ``world_size``: the number of ranks that train together on this machine.

Programs that start their ranks themselves keep their number.
"""

from __future__ import annotations

from dataclasses import replace

from autotune.knobs.base import Here, Knob, Scope
from autotune.knobs.strategies import STRATEGIES, ddp_refusal, devices_of, starts_them_itself
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile
from autotune.program.program import LaunchPlan


class WorldSize(Knob):
    """Number of ranks that train together, each on its own GPU or cores; the batch is per rank.

    Each rank trains on its share of the data, so a step has ``world_size`` times the samples and
    the learning rate follows. More ranks compute more samples at once but spend time on averaging
    gradients. On the CPU the ranks divide the cores among them.
    """

    name = "world_size"
    scope = Scope.RESTART  # ranks are started with the program
    value_type = int
    minimum = 1

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return powers of two up to the number of devices, that number and the program's own.

        Devices are GPUs, or cores for a model on the CPU.
        """
        if here.profile.ranks.started_by:
            return NotOffered(starts_them_itself(here.profile))
        # A program that calls torch.distributed itself takes any number of ranks from its launcher.
        if here.profile.ranks.distributed_by != "torch.distributed" and (
            reason := ddp_refusal(here.hardware, here.profile)
        ):
            return NotOffered(reason)
        # All devices are worth trying even if their number is not a power of two (6 GPUs, 12
        # cores).
        most = max(1, devices_of(here.hardware, here.profile))
        counts = {1 << power for power in range(most.bit_length())}
        return Domain(tuple(sorted(counts | {most, here.profile.ranks.world_size})))

    def current(self, profile: Profile) -> KnobValue:
        """Return the number of ranks that the program is started with, or starts itself."""
        return profile.ranks.world_size

    def refusal(self, value: KnobValue, here: Here) -> str | None:
        """Return a reason if there are fewer devices than ranks."""
        most = devices_of(here.hardware, here.profile)
        if int(value) > most:
            return f"{value} ranks need one device each, and there are {most}"
        return None

    def is_active(self, config: Config) -> bool:
        """Return whether the config's strategy starts ranks; without the knob it is ddp."""
        return STRATEGIES[str(config.get("strategy", "ddp"))].launches_ranks

    def launch(self, value: KnobValue, plan: LaunchPlan) -> LaunchPlan:
        """Start this number of ranks."""
        return replace(plan, ranks=int(value))
