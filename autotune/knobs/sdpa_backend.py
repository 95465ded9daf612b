"""The sdpa_backend knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class SdpaBackend(Knob):
    """The kernel of scaled dot-product attention; auto lets torch choose among all."""

    name = "sdpa_backend"
    value_type = str
    choices = ("auto", "flash", "efficient", "math", "cudnn")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return the kernels that exist for the device, where the program calls this function."""
        if not here.profile.calls_sdpa:
            return NotOffered("the program does not call scaled_dot_product_attention")
        if here.profile.device == "cpu":
            return Domain(("auto", "flash", "math"))
        if here.profile.device != "cuda":
            return NotOffered(f"the {here.profile.device} device has one kernel")
        capabilities = [gpu.compute_capability for gpu in here.hardware.gpus]
        if not capabilities or min(capabilities) < (8, 0):
            return Domain(("auto", "efficient", "math"))
        if min(capabilities) < (9, 0):
            return Domain(("auto", "flash", "efficient", "math"))
        return Domain(("auto", "flash", "efficient", "math", "cudnn"))

    def current(self, profile: Profile) -> KnobValue:
        """Return the one kernel that the program leaves enabled, or auto."""
        return profile.sdpa_backend

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Enable that kernel, and the plain one for what it cannot do."""
        seams.set_torch(self.name, value)
