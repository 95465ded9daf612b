"""The knob ``fsdp_cpu_offload``: whether FSDP keeps its shards in host memory.

Source: PyTorch documentation, ``torch.distributed.fsdp.CPUOffloadPolicy``.
"""

from __future__ import annotations

from autotune.knobs.base import Here, StrategyOption
from autotune.knobs.strategies import in_place_refusal
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class FsdpCpuOffload(StrategyOption):
    """Keep FSDP's shards of weights and optimizer state in host memory: less GPU memory, slower.

    Weights are copied to the GPU for each use and gradients back, and the optimizer steps on the
    CPU. It pays only for models that do not fit otherwise.
    """

    name = "fsdp_cpu_offload"
    strategies = frozenset({"fsdp"})
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both values for a model on a GPU that ranks can train."""
        if here.profile.device != "cuda":
            return NotOffered(
                f"the model is on the {here.profile.device} device; offloading needs CUDA"
            )
        if reason := in_place_refusal(here.hardware, here.profile):
            return NotOffered(reason)
        return Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return False: without this knob the shards stay on the GPU."""
        return False
