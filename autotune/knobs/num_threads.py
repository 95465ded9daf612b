"""The num_threads knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class NumThreads(Knob):
    """Threads that one CPU operator uses; fewer leave cores to the loader's workers."""

    name = "num_threads"
    value_type = int
    minimum = 1

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return the cores, one less, and the halvings of both."""
        if here.profile.device != "cpu":
            return NotOffered(f"the model computes on the {here.profile.device} device")
        if here.hardware.cpu_quota == 1:
            return NotOffered("there is one core")
        counts = {
            start >> halvings
            for start in (here.hardware.cpu_quota, here.hardware.cpu_quota - 1)
            for halvings in range(start.bit_length())
        }
        return Domain(tuple(sorted(counts)))

    def current(self, profile: Profile) -> KnobValue:
        """Return torch's threads when training began."""
        return profile.num_threads

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Set torch's intra-op threads."""
        seams.set_torch(self.name, value)
