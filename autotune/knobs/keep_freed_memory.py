"""The knob ``keep_freed_memory``: whether malloc keeps memory that a step frees for the next one.

Source: mallopt(3), M_TRIM_THRESHOLD and M_MMAP_MAX.
"""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class KeepFreedMemory(Knob):
    """Keep the memory that a step frees for the next one, instead of returning it to the system.

    Otherwise each step on the CPU takes its activations' memory anew, at a page fault for every
    4 KiB. What is computed stays the same. The process keeps the most memory that it ever had.
    """

    name = "keep_freed_memory"
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both values for a model on the CPU whose malloc is glibc's."""
        if here.profile.device != "cpu":
            return NotOffered(f"the model's tensors lie on the {here.profile.device} device")
        if here.profile.allocators.mmap_threshold is None:
            return NotOffered(
                "malloc is not glibc's, the environment tunes it, or steps have no page faults"
            )
        return Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return False: glibc's malloc returns memory unless it is told otherwise."""
        return False

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Tell malloc, which takes effect when memory is freed."""
        seams.keep_freed_memory(enabled=bool(value))
