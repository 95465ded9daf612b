"""The non_blocking knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class NonBlocking(Knob):
    """Copies of pinned batches to the GPU go on while Python does; others stay as they are."""

    name = "non_blocking"
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both ways where copies are made that block."""
        if here.profile.device == "cpu":
            return NotOffered("the model is on the CPU: nothing is copied to a device")
        if here.profile.copies_without_blocking:
            return NotOffered("the program asks for it itself")
        return here.profile.without_training_loader or Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return whether the program asks for it already."""
        return profile.copies_without_blocking

    def is_active(self, config: Config) -> bool:
        """Only from pinned memory can a copy go on by itself."""
        return bool(config.get("pin_memory", True))

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Change what ``Tensor.to`` and ``Tensor.cuda`` do with pinned tensors."""
        seams.set_non_blocking(enabled=bool(value))
