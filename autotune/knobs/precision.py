"""The precision knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob
from autotune.profile import Profile

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


SHORT = {"bfloat16": "bf16", "float16": "fp16"}
LONG = {short: long for long, short in SHORT.items()}


class Precision(Knob):
    """fp32 as written, tf32 products, or bf16 / fp16 autocast with fp32 outputs and weights."""

    name = "precision"
    value_type = str
    choices = ("fp32", "tf32", "bf16", "fp16")

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return what the hardware multiplies natively; fp16, with loss scaling, on CUDA only."""
        if profile.weights_dtype != "float32":
            return NotOffered(f"the program keeps its weights in {profile.weights_dtype}")
        if profile.device == "cuda":
            offered = ["fp32", "fp16"]
            if hardware.supports_bf16_gpu:  # Ampere brought both
                offered = ["fp32", "tf32", "bf16", "fp16"]
            if any("LBFGS" in optimizer.families for optimizer in profile.optimizers):
                offered.remove("fp16")
            return Domain(tuple(offered))
        if profile.device == "cpu" and not hardware.supports_bf16_cpu:
            return NotOffered("this CPU has no bf16 instructions and would emulate them")
        return Domain(("fp32", "bf16"))

    def refusal(self, value: KnobValue, hardware: Hardware, profile: Profile) -> str | None:
        """Emulated bf16 is slow, and TF32 does not exist, before Ampere."""
        lacks = profile.device == "cuda" and hardware.gpus and not hardware.supports_bf16_gpu
        if lacks and value in {"tf32", "bf16"}:
            return f"{value} needs compute capability 8.0 or later"
        if value == "tf32" and profile.device != "cuda":
            return f"the model is on the {profile.device} device, tf32 is CUDA's"
        return None

    def current(self, profile: Profile) -> KnobValue:
        """Return what the program's own autocast computes in, or how it multiplies fp32."""
        if profile.own_autocast:
            return SHORT.get(profile.own_autocast, profile.own_autocast)
        is_tf32 = profile.device == "cuda" and profile.matmul_precision != "highest"
        return "tf32" if is_tf32 else "fp32"

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Enter autocast around each outermost module call, or steer the program's own."""
        dtype = LONG.get(str(value))
        seams.set_precision(dtype)
        seams.process.switch("tf32", value)
