"""The sync_batchnorm knob."""

from __future__ import annotations

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import StrategyOption
from autotune.profile import Profile
from autotune.strategies import in_place_refusal


class SyncBatchnorm(StrategyOption):
    """BatchNorm over the samples of all ranks, as on one device, instead of each rank's own."""

    name = "sync_batchnorm"
    strategies = frozenset({"ddp", "zero1"})
    value_type = bool

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return both, where the model has such layers and torch can do it."""
        if not profile.batch_norm_layers:
            return NotOffered("the model has no BatchNorm")
        if profile.device != "cuda":
            return NotOffered("torch's SyncBatchNorm works on GPUs alone")
        if reason := in_place_refusal(hardware, profile):
            return NotOffered(reason)
        return Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:  # noqa: ARG002
        """Return that BatchNorm sees a rank's own samples."""
        return False
