"""The matmul_precision knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class MatmulPrecision(Knob):
    """How fp32 matrix products may be computed on the CPU: exactly, or by bf16 units (medium)."""

    name = "matmul_precision"
    value_type = str
    choices = ("highest", "high", "medium")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return the strictest and the loosest where oneDNN knows bf16 instructions."""
        if here.profile.device == "cuda":
            return NotOffered("on CUDA this is precision: tf32")
        if here.profile.device != "cpu":
            return NotOffered(f"it has no effect on the {here.profile.device} device")
        if not here.hardware.supports_bf16_cpu:
            return NotOffered("this CPU has no bf16 instructions")
        return Domain(("highest", "medium"))

    def current(self, profile: Profile) -> KnobValue:
        """Return the program's own setting."""
        return profile.matmul_precision

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Set torch.set_float32_matmul_precision."""
        seams.set_torch(self.name, value)
