"""The fsdp_cpu_offload knob."""

from __future__ import annotations

from autotune.knobs.base import Here, StrategyOption
from autotune.knobs.strategies import in_place_refusal
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class FsdpCpuOffload(StrategyOption):
    """Shards of weights and states lie in host memory: room on the GPU, at the price of copies."""

    name = "fsdp_cpu_offload"
    strategies = frozenset({"fsdp"})
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both on a GPU."""
        if here.profile.device != "cuda":
            return NotOffered(f"the model is on the {here.profile.device} already")
        if reason := in_place_refusal(here.hardware, here.profile):
            return NotOffered(reason)
        return Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return that shards stay on the GPU."""
        return False
