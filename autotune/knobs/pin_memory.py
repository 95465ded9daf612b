"""The pin_memory knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob
from autotune.profile import Profile

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class PinMemory(Knob):
    """Batches in page-locked memory, from which copies to the GPU are faster."""

    name = "pin_memory"
    value_type = bool

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:  # noqa: ARG002
        """Return both ways: it was seen to help and to hurt."""
        if profile.device == "cpu":
            return NotOffered("the model is on the CPU: nothing is copied to a device")
        return profile.without_training_loader or Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return the setting of the (first) training loader."""
        return profile.loaders[0].pin_memory

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Ask for a loader that pins or does not."""
        seams.loader.request(pin_memory=bool(value))
