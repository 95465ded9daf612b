"""The knob ``flush_denormal``: whether the CPU treats denormal numbers as 0.

Source: PyTorch documentation, ``torch.set_flush_denormal``. The mode belongs to a thread, so it is
set before PyTorch starts others.
"""

from __future__ import annotations

from autotune.knobs.base import Here, ProcessSwitch, Scope
from autotune.program.domain import Domain, NotOffered


class FlushDenormal(ProcessSwitch):
    """Treat denormal (extremely small) numbers as 0, because CPUs compute with them slowly.

    It helps where activations or optimizer state decay towards 0. fp32 numbers below about 1e-38
    are lost.

    It acts by ``torch.set_flush_denormal``, before the program starts its threads.
    """

    name = "flush_denormal"
    scope = Scope.RESTART  # threads inherit the mode from the thread that starts them
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both values for a model on the CPU."""
        if here.profile.device != "cpu":
            return NotOffered(f"the model computes on the {here.profile.device} device")
        return Domain((False, True))
