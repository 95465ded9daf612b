"""The knob ``interop_threads``: PyTorch's inter-op threads in the training process.

They are not the threads within an operator, which ``num_threads`` sets.

Source: PyTorch documentation, ``torch.set_num_interop_threads``.
"""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Scope, Seams
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class InteropThreads(Knob):
    """Number of threads that run independent operators in parallel (torch.jit.fork).

    Eager programs seldom use these threads; the knob matters to TorchScript code that forks. It is
    in no shipped search space but ``full``.
    """

    name = "interop_threads"
    scope = Scope.RESTART  # torch fixes their number when the first of them starts
    value_type = int
    minimum = 1

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return one thread and one per core."""
        if here.profile.device != "cpu":
            return NotOffered(f"the model computes on the {here.profile.device} device")
        if here.hardware.cpu_quota == 1:
            return NotOffered("there is one core")
        return Domain((1, here.hardware.cpu_quota))

    def current(self, profile: Profile) -> KnobValue:
        """Return PyTorch's number of inter-op threads when training began."""
        return profile.settings.interop_threads

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Set the number of threads before the program starts.

        PyTorch raises an error if the number is set twice, so the program's own call has no effect
        then.
        """
        seams.set_interop_threads(int(value))
