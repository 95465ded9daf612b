"""The anomaly_detection knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class AnomalyDetection(Knob):
    """Autograd's search for the origin of NaN, for debugging; a script may have left it on."""

    name = "anomaly_detection"
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return off beside on for a program that has it on."""
        if not here.profile.anomaly_detection:
            return NotOffered("it is off")
        return Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return the program's own setting."""
        return profile.anomaly_detection

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Set torch.autograd.set_detect_anomaly."""
        seams.set_torch(self.name, value)
