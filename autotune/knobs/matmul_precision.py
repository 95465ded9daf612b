"""The knob ``matmul_precision``: how exactly fp32 matrix products are computed on the CPU.

Source: PyTorch documentation, ``torch.set_float32_matmul_precision``. On CUDA the same switch
belongs to the knob ``precision`` (tf32), so that no two knobs set it.
"""

from __future__ import annotations

from autotune.knobs.base import Here, ProcessSwitch
from autotune.program.domain import Domain, NotOffered


class MatmulPrecision(ProcessSwitch):
    """Precision of fp32 matrix products on the CPU: medium allows bf16 instructions.

    It helps where matrix products of fp32 tensors dominate and the CPU has bf16 instructions.
    Products are rounded more coarsely; tensors stay fp32.

    It acts by ``torch.set_float32_matmul_precision``: later products use the new precision.
    """

    name = "matmul_precision"
    changes_learning = True
    value_type = str
    choices = ("highest", "high", "medium")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return highest and medium for a CPU with bf16 instructions.

        These are the strictest and the loosest setting; "high" lies between them and is not tried.
        """
        if here.profile.device == "cuda":
            return NotOffered("on CUDA the knob precision sets it (tf32)")
        if here.profile.device != "cpu":
            return NotOffered(f"it has no effect on the {here.profile.device} device")
        # Without them oneDNN ignores the setting.
        if not here.hardware.supports_bf16_cpu:
            return NotOffered("this CPU has no bf16 instructions")
        return Domain(("highest", "medium"))
