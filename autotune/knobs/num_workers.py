"""The num_workers knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob
from autotune.profile import Profile

if TYPE_CHECKING:
    from autotune.inside.seams import Seams

CANDIDATES = (0, 1, 2, 4, 8, 12, 16, 24, 32)


class NumWorkers(Knob):
    """Processes that load batches in parallel with the training step."""

    name = "num_workers"
    value_type = int

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return 0 up to one and a half times the cores: loading often waits for storage."""
        if refusal := profile.without_training_loader:
            return refusal
        if profile.loaders[0].iterable:
            return NotOffered("the dataset is iterable: each worker may repeat all its samples")
        most = max(2, hardware.cpu_quota + hardware.cpu_quota // 2)
        return Domain(tuple(n for n in CANDIDATES if n <= most))

    def current(self, profile: Profile) -> KnobValue:
        """Return the workers of the (first) training loader."""
        return profile.loaders[0].num_workers

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Ask for a loader with that many workers."""
        seams.loader.request(num_workers=int(value))
