"""The cuda_allocator knob."""

from __future__ import annotations

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob, Scope
from autotune.profile import Profile
from autotune.program import LaunchPlan

VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
EXPANDABLE = "expandable_segments"


class CudaAllocator(Knob):
    """How torch takes memory from the GPU: in fixed segments, or in ones that can grow."""

    name = "cuda_allocator"
    scope = Scope.RESTART
    value_type = str
    choices = ("default", EXPANDABLE)

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:  # noqa: ARG002
        """Return both on CUDA: growing segments fragment less, which leaves room for batches."""
        if profile.device != "cuda":
            return NotOffered(f"the model is on the {profile.device} device")
        return Domain(self.choices)

    def current(self, profile: Profile) -> KnobValue:
        """Return the program's environment."""
        return EXPANDABLE if f"{EXPANDABLE}:True" in profile.cuda_alloc_conf else "default"

    def launch(self, value: KnobValue, plan: LaunchPlan) -> LaunchPlan:
        """Set this option beside those that are set already."""
        options = filter(None, plan.variable(VARIABLE).split(","))
        kept = [option for option in options if not option.startswith(EXPANDABLE)]
        return plan.with_env(**{VARIABLE: ",".join([*kept, f"{EXPANDABLE}:{value == EXPANDABLE}"])})
