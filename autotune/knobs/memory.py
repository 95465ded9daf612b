"""Settings that trade speed for memory, and what the CPU's malloc does with freed memory.

Sources: PyTorch documentation, ``torch.utils.checkpoint`` and "CUDA semantics"
(``PYTORCH_ALLOC_CONF``, ``expandable_segments``); mallopt(3), M_TRIM_THRESHOLD, M_MMAP_MAX.
"""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Scope
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.may_change import MayChange
from autotune.program.profile import Profile
from autotune.program.program import LaunchPlan

VARIABLE, NEWER = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"  # torch reads the newer first
EXPANDABLE = "expandable_segments"


class ActivationCheckpointing(Knob):
    """Recompute activations in the backward pass instead of storing them: less memory, slower.

    It pays only where the saved memory allows a larger batch or a model that would not fit
    otherwise. "half" recomputes every second block, "all" every block. Each recomputed block costs
    a second forward pass.
    """

    name = "activation_checkpointing"
    changes = MayChange.NOTHING
    value_type = str
    choices = ("off", "half", "all")
    usual = "off"  # also for a program that checkpoints activations itself: this adds to it
    flag_names = ("gradient_checkpointing", "activation_checkpointing", "checkpoint_activations")
    flag_states = ("off", "all")

    def domain(self, here: Here) -> Domain | NotOffered:
        if not here.profile.model.repeated_blocks:
            return NotOffered("the model has no repeated blocks")
        return Domain(self.choices)

    def conflict(self, config: Config) -> str | None:
        if config[self.name] != "off" and config.get("compile", "off") != "off":
            return (
                "torch.compile itself decides which activations to recompute, so the two knobs "
                "exclude each other."
            )
        return None


class CudaAllocator(Knob):
    """How PyTorch reserves GPU memory: in fixed segments, or in segments that can grow.

    Growing segments fragment less where the sizes of allocations change from step to step, which
    leaves room for larger batches.
    """

    name = "cuda_allocator"
    changes = MayChange.NOTHING
    scope = Scope.RESTART  # the environment is read when the process starts
    value_type = str
    choices = ("default", EXPANDABLE)

    def domain(self, here: Here) -> Domain | NotOffered:
        if here.profile.device != "cuda":
            return NotOffered(f"the model is on the {here.profile.device} device")
        return Domain(self.choices)

    def current(self, profile: Profile) -> KnobValue:
        grows = f"{EXPANDABLE}:True" in profile.allocators.cuda_alloc_conf
        return EXPANDABLE if grows else "default"

    def launch(self, value: KnobValue, plan: LaunchPlan) -> LaunchPlan:
        variable = NEWER if plan.variable(NEWER) else VARIABLE
        options = filter(None, plan.variable(variable).split(","))
        kept = [option for option in options if not option.startswith(EXPANDABLE)]
        return plan.with_env(**{variable: ",".join([*kept, f"{EXPANDABLE}:{value == EXPANDABLE}"])})


class KeepFreedMemory(Knob):
    """Keep the memory that a step frees for the next one, instead of returning it to the system.

    Otherwise each step on the CPU takes its activations' memory anew, at a page fault for every
    4 KiB. What is computed stays the same. The process keeps the most memory that it ever had.
    Every config but the program's has it (``space.HELD``).
    """

    name = "keep_freed_memory"
    changes = MayChange.NOTHING
    usual = False
    is_hidden = True
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        if here.profile.device != "cpu":
            return NotOffered(f"the model's tensors lie on the {here.profile.device} device")
        if here.profile.allocators.mmap_threshold is None:
            return NotOffered(
                "malloc is not glibc's, the environment tunes it, or steps have no page faults"
            )
        return Domain((False, True))
