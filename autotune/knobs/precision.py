"""The knob ``precision``: the number format in which the model computes.

Sources: PyTorch documentation, "Automatic Mixed Precision" (``torch.amp``), "CUDA semantics"
(TensorFloat-32) and ``torch.set_float32_matmul_precision``.
"""

from __future__ import annotations

from autotune.knobs.base import Here, Knob
from autotune.machine.hardware import Hardware
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.flags import Flag
from autotune.program.may_change import MayChange
from autotune.program.profile import Profile

# Vocabularies of flags: torch's dtype names, autotune's, Lightning's and Accelerate's.
WORDS = (
    {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"},
    {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16"},
    {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"},
    {"fp32": "no", "bf16": "bf16", "fp16": "fp16"},
)
SHORT = {"bfloat16": "bf16", "float16": "fp16"}
NEEDS_SCALING = "fp16 needs scaled losses, but"


class Precision(Knob):
    """Number format of the computation: fp32, faster fp32 products (tf32, medium), bf16 or fp16.

    Lower precision is faster where the hardware has units for it, and rounds more coarsely. Weights
    and the model's outputs stay fp32. tf32 affects only matrix products and convolutions on CUDA,
    and fp32 only the products: PyTorch computes convolutions in TF32 unless the program sets
    ``torch.backends.cudnn.allow_tf32 = False``. medium lets a CPU use bf16 instructions for matrix
    products of fp32. fp16 comes with loss scaling, because its small gradients would become 0;
    steps that overflow are left out.
    """

    name = "precision"
    changes = MayChange.ROUNDING
    rounds_coarsely = True
    value_type = str
    choices = ("fp32", "tf32", "medium", "bf16", "fp16")
    flag_names = ("precision", "dtype", "amp_dtype", "mixed_precision")

    def domain(self, here: Here) -> Domain | NotOffered:
        if here.profile.precision.weights_dtype != "float32":
            return NotOffered(
                f"the program keeps its weights in {here.profile.precision.weights_dtype}"
            )
        return self._native(here.hardware, here.profile)

    def flag_domain(self, flag: Flag, here: Here) -> Domain | None:
        native, words = self._native(here.hardware, here.profile), _words_of(flag)
        if isinstance(native, NotOffered) or words is None:
            return None
        taken = (n for n in native.values if words.get(str(n)) in (flag.choices or words.values()))
        offered = tuple(n for n in taken if str(n) in words)
        return Domain(offered) if offered else None

    def parse_flag(self, flag: Flag) -> KnobValue:
        words = _words_of(flag) or {}
        return next((name for name, word in words.items() if word == flag.value), "fp32")

    def format_flag(self, value: KnobValue, flag: Flag) -> str:
        return (_words_of(flag) or {}).get(str(value), str(value))

    def _native(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        if profile.device == "cuda":
            offered = ["fp32", "fp16"]
            if hardware.supports_bf16_gpu:  # TF32 and bf16 both came with Ampere
                offered = ["fp32", "tf32", "bf16", "fp16"]
            if _against_scaling(profile):
                offered.remove("fp16")
            if len(offered) == 1:
                return NotOffered(f"{_against_scaling(profile)}; this GPU has no other fast format")
            return Domain(tuple(offered))
        if profile.device == "cpu" and not hardware.supports_bf16_cpu:
            # A program that computes in bf16 here may gain by fp32; none gains by bf16
            return Domain(
                ("fp32",), alone="this CPU has no bf16 instructions and would emulate them"
            )
        if profile.device == "cpu":
            return Domain(("fp32", "medium", "bf16"))
        return Domain(("fp32", "bf16"))

    def refusal(self, value: KnobValue, here: Here) -> str | None:
        without = here.profile.without_optimizer(
            ", so autotune could not skip a step that overflows fp16"
        )
        if value == "fp16" and without is not None:
            return without.reason
        lacks = (
            here.profile.device == "cuda"
            and here.hardware.compute_capability is not None
            and not here.hardware.supports_bf16_gpu
        )
        if lacks and value in {"tf32", "bf16"}:
            return f"{value} needs compute capability 8.0 or later"
        needed = {"tf32": "cuda", "medium": "cpu"}.get(str(value), here.profile.device)
        if needed != here.profile.device:
            return f"the model is on the {here.profile.device} device; {value} is for {needed}"
        return _against_scaling(here.profile) if value == "fp16" else None

    def current(self, profile: Profile) -> KnobValue:
        if profile.precision.autocast:
            return SHORT.get(profile.precision.autocast, profile.precision.autocast)
        # "high" and "medium" both allow TF32 on CUDA; "high" changes nothing on a CPU.
        products = {"cuda": {"high": "tf32", "medium": "tf32"}, "cpu": {"medium": "medium"}}
        allowed = products.get(profile.device, {})
        return allowed.get(profile.settings.matmul_precision, "fp32")


def _against_scaling(profile: Profile) -> str | None:
    """Return why losses cannot be scaled, or None if they can."""
    if profile.precision.has_scaler or profile.precision.autocast == "float16":
        return None  # the program already trains in fp16, by its own means
    if profile.loop.steps_by_hand:
        return (
            f"{NEEDS_SCALING} the program steps without an optimizer ({profile.loop.steps_by_hand})"
        )
    if profile.loop.against_scaling:
        return f"{NEEDS_SCALING} {profile.loop.against_scaling}"
    return None


def _words_of(flag: Flag) -> dict[str, str] | None:
    """Return the program's words for formats, known by the flag's value, or None."""
    return next((words for words in WORDS if flag.value in words.values()), None)
