"""The pin_memory knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.flags import Flag
from autotune.program.profile import Profile


class PinMemory(Knob):
    """Batches in page-locked memory, from which copies to the GPU are faster."""

    name = "pin_memory"
    value_type = bool
    flag_names = ("pin_memory", "pin_mem", "dataloader_pin_memory")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both ways: it was seen to help and to hurt."""
        if here.profile.device == "cpu":
            return NotOffered("the model is on the CPU: nothing is copied to a device")
        return here.profile.without_training_loader or Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return the setting of the (first) training loader."""
        return profile.loaders[0].pin_memory

    def flag_domain(self, flag: Flag, here: Here) -> Domain | None:
        """Return both ways for a switch, where there is a device to copy to."""
        return Domain((False, True)) if flag.is_truth and here.profile.device != "cpu" else None

    def parse_flag(self, flag: Flag) -> KnobValue:
        """Return whether the program pins."""
        return flag.is_on

    def format_flag(self, value: KnobValue, flag: Flag) -> str:
        """Return how the program says so."""
        return flag.truth(is_on=bool(value))

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Ask for a loader that pins or does not."""
        seams.set_loader_options(pin_memory=bool(value))
