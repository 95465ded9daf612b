"""The precision knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.machine.hardware import Hardware
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.flags import Flag
from autotune.program.profile import Profile

WORDS = (  # torch's own names, ours, Lightning's, Accelerate's
    {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"},
    {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16"},
    {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"},
    {"fp32": "no", "bf16": "bf16", "fp16": "fp16"},
)
SHORT = {"bfloat16": "bf16", "float16": "fp16"}
LONG = {short: long for long, short in SHORT.items()}


class Precision(Knob):
    """fp32 as written, tf32 products, or bf16 / fp16 autocast with fp32 outputs and weights."""

    name = "precision"
    value_type = str
    choices = ("fp32", "tf32", "bf16", "fp16")
    flag_names = ("precision", "dtype", "amp_dtype", "mixed_precision")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return what the hardware multiplies natively; fp16, with loss scaling, on CUDA only."""
        if here.profile.weights_dtype != "float32":
            return NotOffered(f"the program keeps its weights in {here.profile.weights_dtype}")
        return self._native(here.hardware, here.profile)

    def flag_domain(self, flag: Flag, here: Here) -> Domain | None:
        """Return the same for a flag whose words are known, as far as the program takes them."""
        native, words = self._native(here.hardware, here.profile), _words_of(flag)
        if isinstance(native, NotOffered) or words is None:
            return None
        taken = (n for n in native.values if words.get(str(n)) in (flag.choices or words.values()))
        offered = tuple(n for n in taken if str(n) in words)
        return Domain(offered) if offered else None

    def parse_flag(self, flag: Flag) -> KnobValue:
        """Return what the program computes in."""
        words = _words_of(flag) or {}
        return next((name for name, word in words.items() if word == flag.value), "fp32")

    def format_flag(self, value: KnobValue, flag: Flag) -> str:
        """Return what the program calls it."""
        return (_words_of(flag) or {}).get(str(value), str(value))

    def _native(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        if profile.device == "cuda":
            offered = ["fp32", "fp16"]
            if hardware.supports_bf16_gpu:  # Ampere brought both
                offered = ["fp32", "tf32", "bf16", "fp16"]
            if _against_scaling(profile):
                offered.remove("fp16")
            if len(offered) == 1:
                return NotOffered(f"only fp16 is fast here, and {_against_scaling(profile)}")
            return Domain(tuple(offered))
        if profile.device == "cpu" and not hardware.supports_bf16_cpu:
            return NotOffered("this CPU has no bf16 instructions and would emulate them")
        return Domain(("fp32", "bf16"))

    def refusal(self, value: KnobValue, here: Here) -> str | None:
        """Emulated bf16 is slow, and TF32 does not exist, before Ampere; fp16 leaves out steps."""
        without = here.profile.without_optimizer(
            "and a step that overflows fp16 could not be left out"
        )
        if value == "fp16" and without is not None:
            return without.reason
        lacks = (
            here.profile.device == "cuda"
            and here.hardware.gpus
            and not here.hardware.supports_bf16_gpu
        )
        if lacks and value in {"tf32", "bf16"}:
            return f"{value} needs compute capability 8.0 or later"
        if value == "tf32" and here.profile.device != "cuda":
            return f"the model is on the {here.profile.device} device, tf32 is CUDA's"
        return _against_scaling(here.profile) if value == "fp16" else None

    def current(self, profile: Profile) -> KnobValue:
        """Return what the program's own autocast computes in, or how it multiplies fp32."""
        if profile.program_autocast:
            return SHORT.get(profile.program_autocast, profile.program_autocast)
        is_tf32 = profile.device == "cuda" and profile.matmul_precision != "highest"
        return "tf32" if is_tf32 else "fp32"

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Enter autocast around each outermost module call, or steer the program's own."""
        dtype = LONG.get(str(value))
        seams.set_precision(dtype)
        seams.set_torch("tf32", value)


def _against_scaling(profile: Profile) -> str | None:
    """Return why losses cannot be scaled, without which small fp16 gradients vanish."""
    if profile.program_scaler or profile.program_autocast == "float16":
        return None  # what the program does is its own
    if profile.steps_by_hand:
        return f"the program steps without an optimizer ({profile.steps_by_hand})"
    if profile.avoids_backward:
        return "the program computes gradients by torch.autograd.grad, which is not scaled"
    lbfgs = (o.name for o in profile.optimizers if "LBFGS" in o.families)
    return next((f"{name} compares losses and gradients of many passes" for name in lbfgs), None)


def _words_of(flag: Flag) -> dict[str, str] | None:
    """The words of the program for the precisions, told by the one that it uses."""
    return next((words for words in WORDS if flag.value in words.values()), None)
