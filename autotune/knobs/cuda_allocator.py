"""The cuda_allocator knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Scope
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile
from autotune.program.program import LaunchPlan

VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
EXPANDABLE = "expandable_segments"


class CudaAllocator(Knob):
    """How torch takes memory from the GPU: in fixed segments, or in ones that can grow."""

    name = "cuda_allocator"
    scope = Scope.RESTART
    value_type = str
    choices = ("default", EXPANDABLE)

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both on CUDA: growing segments fragment less, which leaves room for batches."""
        if here.profile.device != "cuda":
            return NotOffered(f"the model is on the {here.profile.device} device")
        return Domain(self.choices)

    def current(self, profile: Profile) -> KnobValue:
        """Return the program's environment."""
        return EXPANDABLE if f"{EXPANDABLE}:True" in profile.cuda_alloc_conf else "default"

    def launch(self, value: KnobValue, plan: LaunchPlan) -> LaunchPlan:
        """Set this option beside those that are set already."""
        options = filter(None, plan.variable(VARIABLE).split(","))
        kept = [option for option in options if not option.startswith(EXPANDABLE)]
        return plan.with_env(**{VARIABLE: ",".join([*kept, f"{EXPANDABLE}:{value == EXPANDABLE}"])})
