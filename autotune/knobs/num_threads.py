"""The num_threads knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob
from autotune.profile import Profile

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class NumThreads(Knob):
    """Threads that one CPU operator uses; fewer leave cores to the loader's workers."""

    name = "num_threads"
    value_type = int
    minimum = 1

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return the cores, one less, and the halvings of both."""
        if profile.device != "cpu":
            return NotOffered(f"the model computes on the {profile.device} device")
        if hardware.cpu_quota == 1:
            return NotOffered("there is one core")
        counts = {
            start >> halvings
            for start in (hardware.cpu_quota, hardware.cpu_quota - 1)
            for halvings in range(start.bit_length())
        }
        return Domain(tuple(sorted(counts)))

    def current(self, profile: Profile) -> KnobValue:
        """Return torch's threads when training began."""
        return profile.num_threads

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Set torch's intra-op threads."""
        seams.process.switch(self.name, value)
