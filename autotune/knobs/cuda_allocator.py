"""The knob ``cuda_allocator``: how PyTorch's caching allocator reserves GPU memory.

Source: PyTorch documentation, "CUDA semantics" (``PYTORCH_CUDA_ALLOC_CONF``,
``expandable_segments``). The variable must be set before the program starts.
"""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Scope
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile
from autotune.program.program import LaunchPlan

VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
EXPANDABLE = "expandable_segments"


class CudaAllocator(Knob):
    """How PyTorch reserves GPU memory: in fixed segments, or in segments that can grow.

    Growing segments fragment less where the sizes of allocations change from step to step, which
    leaves room for larger batches.
    """

    name = "cuda_allocator"
    scope = Scope.RESTART  # the environment is read when the process starts
    value_type = str
    choices = ("default", EXPANDABLE)

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both kinds of segments for a model on CUDA."""
        if here.profile.device != "cuda":
            return NotOffered(f"the model is on the {here.profile.device} device")
        return Domain(self.choices)

    def current(self, profile: Profile) -> KnobValue:
        """Return the setting in the program's environment."""
        return (
            EXPANDABLE if f"{EXPANDABLE}:True" in profile.allocators.cuda_alloc_conf else "default"
        )

    def launch(self, value: KnobValue, plan: LaunchPlan) -> LaunchPlan:
        """Set this option in ``PYTORCH_CUDA_ALLOC_CONF`` and keep the user's other options."""
        options = filter(None, plan.variable(VARIABLE).split(","))
        kept = [option for option in options if not option.startswith(EXPANDABLE)]
        return plan.with_env(**{VARIABLE: ",".join([*kept, f"{EXPANDABLE}:{value == EXPANDABLE}"])})
