"""The anomaly_detection knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob
from autotune.profile import Profile

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class AnomalyDetection(Knob):
    """Autograd's search for the origin of NaN, for debugging; a script may have left it on."""

    name = "anomaly_detection"
    value_type = bool

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:  # noqa: ARG002
        """Return off beside on for a program that has it on."""
        if not profile.anomaly_detection:
            return NotOffered("it is off")
        return Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return the program's own setting."""
        return profile.anomaly_detection

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Set torch.autograd.set_detect_anomaly."""
        seams.process.switch(self.name, value)
