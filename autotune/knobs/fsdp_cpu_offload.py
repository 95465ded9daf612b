"""The fsdp_cpu_offload knob."""

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


class FsdpCpuOffload(Knob):
    """Shards of weights and states lie in host memory: room on the GPU, at the price of copies."""

    name = "fsdp_cpu_offload"
    scope = Scope.RESTART
    value_type = bool

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return both on a GPU."""
        if profile.device != "cuda":
            return NotOffered(f"the model is on the {profile.device} already")
        if reason := fsdp_refusal(hardware, profile):
            return NotOffered(reason)
        return Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:  # noqa: ARG002
        """Return that shards stay on the GPU."""
        return False

    def is_active(self, config: Config) -> bool:
        """Tell whether the strategy is fsdp."""
        return config.get("strategy") == "fsdp"

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Pass it to the strategy."""
        seams.distribution.request(fsdp_cpu_offload=bool(value))
