"""The fsdp_cpu_offload knob."""

from __future__ import annotations

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import StrategyOption
from autotune.profile import Profile
from autotune.strategies import in_place_refusal


class FsdpCpuOffload(StrategyOption):
    """Shards of weights and states lie in host memory: room on the GPU, at the price of copies."""

    name = "fsdp_cpu_offload"
    strategies = frozenset({"fsdp"})
    value_type = bool

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return both on a GPU."""
        if profile.device != "cuda":
            return NotOffered(f"the model is on the {profile.device} already")
        if reason := in_place_refusal(hardware, profile):
            return NotOffered(reason)
        return Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:  # noqa: ARG002
        """Return that shards stay on the GPU."""
        return False
