"""The knob ``sync_batchnorm``: whose samples BatchNorm's statistics cover under DDP.

Without it each rank normalizes by the statistics of its share of the batch.

Source: PyTorch documentation, ``torch.nn.SyncBatchNorm``.
"""

from __future__ import annotations

from autotune.knobs.base import Here, StrategyOption
from autotune.knobs.strategies import in_place_refusal
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class SyncBatchnorm(StrategyOption):
    """Compute BatchNorm statistics over the samples of all ranks instead of each rank's alone.

    On makes several ranks train like one device with the whole batch. It costs one communication
    per BatchNorm layer in each forward and backward pass, so it is slower.
    """

    name = "sync_batchnorm"
    changes_learning = True
    strategies = frozenset({"ddp", "zero1"})
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both values for a model with BatchNorm layers on GPUs."""
        if not here.profile.model.batch_norm_layers:
            return NotOffered("the model has no BatchNorm")
        # PyTorch's SyncBatchNorm raises an error for tensors on the CPU.
        if here.profile.device != "cuda":
            return NotOffered("torch's SyncBatchNorm works on GPUs only")
        if reason := in_place_refusal(here.hardware, here.profile):
            return NotOffered(reason)
        return Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return False: without autotune, each rank's BatchNorm sees that rank's samples."""
        return False
