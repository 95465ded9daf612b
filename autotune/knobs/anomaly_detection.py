"""The knob ``anomaly_detection``: autograd's search for the operation that made a NaN.

Source: PyTorch documentation, ``torch.autograd.detect_anomaly``, which warns that the checks slow a
program down and should be enabled only for debugging.
"""

from __future__ import annotations

from autotune.knobs.base import Here, ProcessSwitch
from autotune.program.domain import Domain, NotOffered


class AnomalyDetection(ProcessSwitch):
    """Autograd's debugging check that finds where a NaN arises; scripts sometimes leave it on.

    While it is on, autograd records a traceback for each operation and checks gradients for NaN.
    Turning it off changes nothing that is learned.

    It acts by ``torch.autograd.set_detect_anomaly``, which later forward passes obey; the program's
    setting of ``check_nan`` is kept.
    """

    name = "anomaly_detection"
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both values for a program that has the check on."""
        if not here.profile.settings.anomaly_detection:
            return NotOffered("it is off")
        return Domain((False, True))
