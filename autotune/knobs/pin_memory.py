"""The knob ``pin_memory``: whether the loader puts batches into page-locked memory.

Source: PyTorch documentation, ``torch.utils.data`` ("Memory Pinning"). Whether copies from that
memory make Python wait is the knob ``non_blocking``.
"""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.flags import Flag
from autotune.program.profile import Profile


class PinMemory(Knob):
    """Load batches into page-locked memory, from which copies to the GPU are faster.

    It helps where the copy to the GPU takes a noticeable part of a step, most of all together with
    ``non_blocking``. It costs an extra copy in host memory, with workers by a thread of the
    training process.
    """

    name = "pin_memory"
    value_type = bool
    flag_names = ("pin_memory", "pin_mem", "dataloader_pin_memory")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both values where batches are copied to a device.

        Pinning can also slow a program down, so a program that already pins is tried without it.
        """
        if here.profile.device == "cpu":
            return NotOffered("the model is on the CPU: nothing is copied to a device")
        return here.profile.without_training_loader or Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return the setting of the (first) training loader."""
        return profile.loaders[0].pin_memory

    def flag_domain(self, flag: Flag, here: Here) -> Domain | None:
        """Return both values for an on/off flag, or None for a model on the CPU."""
        return Domain((False, True)) if flag.is_truth and here.profile.device != "cpu" else None

    def parse_flag(self, flag: Flag) -> KnobValue:
        """Return whether the program's flag is on."""
        return flag.is_on

    def format_flag(self, value: KnobValue, flag: Flag) -> str:
        """Return the flag's text for on or off, as the program spells it."""
        return flag.truth(is_on=bool(value))

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Rebuild the training loader with this setting."""
        seams.set_loader_options(pin_memory=bool(value))
