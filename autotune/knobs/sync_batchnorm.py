"""The sync_batchnorm knob."""

from __future__ import annotations

from autotune.knobs.base import Here, StrategyOption
from autotune.knobs.strategies import in_place_refusal
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class SyncBatchnorm(StrategyOption):
    """BatchNorm over the samples of all ranks, as on one device, instead of each rank's own."""

    name = "sync_batchnorm"
    strategies = frozenset({"ddp", "zero1"})
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both, where the model has such layers and torch can do it."""
        if not here.profile.batch_norm_layers:
            return NotOffered("the model has no BatchNorm")
        if here.profile.device != "cuda":
            return NotOffered("torch's SyncBatchNorm works on GPUs alone")
        if reason := in_place_refusal(here.hardware, here.profile):
            return NotOffered(reason)
        return Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return that BatchNorm sees a rank's own samples."""
        return False
