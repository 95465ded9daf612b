"""The knob ``sdpa_backend``: the kernel of ``scaled_dot_product_attention``.

Source: PyTorch documentation, ``torch.nn.functional.scaled_dot_product_attention`` and
``torch.backends.cuda``.
"""

from __future__ import annotations

from autotune.knobs.base import Here, ProcessSwitch
from autotune.program.domain import Domain, NotOffered


class SdpaBackend(ProcessSwitch):
    """Kernel of scaled dot-product attention; auto lets PyTorch choose for each call.

    The fused kernels (flash, efficient, cudnn) avoid storing the attention matrix and are usually
    faster; math is the plain computation. Which fused kernel wins depends on shapes, dtype and GPU.
    Kernels round differently.

    This kernel is enabled, and math for the inputs that it does not support, such as an evaluation
    in fp32 or an unusual mask, which would otherwise fail.
    """

    name = "sdpa_backend"
    value_type = str
    choices = ("auto", "flash", "efficient", "math", "cudnn")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return the kernels that exist for the device, if the program calls the function.

        The CPU has flash and math. The kernels of a GPU follow from its compute capability.
        """
        if here.profile.settings.sdpa_backend is None:
            return NotOffered("the program does not call scaled_dot_product_attention")
        if here.profile.device == "cpu":
            return Domain(("auto", "flash", "math"))
        if here.profile.device != "cuda":
            return NotOffered(f"the {here.profile.device} device has only one attention kernel")
        capability = here.hardware.compute_capability
        # FlashAttention needs Ampere (compute capability 8.0). It is left out where the capability
        # is unknown.
        if capability is None or capability < (8, 0):
            return Domain(("auto", "efficient", "math"))
        if capability < (9, 0):
            return Domain(("auto", "flash", "efficient", "math"))
        return Domain(("auto", "flash", "efficient", "math", "cudnn"))
