"""The pin_memory knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.flags import Flag
from autotune.hardware import Hardware
from autotune.knobs.base import Knob
from autotune.profile import Profile

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class PinMemory(Knob):
    """Batches in page-locked memory, from which copies to the GPU are faster."""

    name = "pin_memory"
    value_type = bool
    flag_names = ("pin_memory", "pin_mem", "dataloader_pin_memory")

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:  # noqa: ARG002
        """Return both ways: it was seen to help and to hurt."""
        if profile.device == "cpu":
            return NotOffered("the model is on the CPU: nothing is copied to a device")
        return profile.without_training_loader or Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return the setting of the (first) training loader."""
        return profile.loaders[0].pin_memory

    def by_flag(self, flag: Flag, hardware: Hardware, profile: Profile) -> Domain | None:  # noqa: ARG002
        """Return both ways for a switch, where there is a device to copy to."""
        return Domain((False, True)) if flag.is_truth and profile.device != "cpu" else None

    def from_flag(self, flag: Flag) -> KnobValue:
        """Return whether the program pins."""
        return flag.is_on

    def to_flag(self, value: KnobValue, flag: Flag) -> str:
        """Return how the program says so."""
        return flag.truth(is_on=bool(value))

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Ask for a loader that pins or does not."""
        seams.loader.request(pin_memory=bool(value))
