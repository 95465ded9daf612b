"""What is done to the program's model as a whole: its memory format, and compiling it.

Sources: PyTorch tutorials, "Channels Last Memory Format in PyTorch"; PyTorch documentation,
``torch.compile`` (``mode``, ``dynamic``).
"""

from __future__ import annotations

from autotune.knobs.base import Here, Knob
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.flags import Flag
from autotune.program.may_change import MayChange
from autotune.program.profile import Profile

DYNAMIC = "-dynamic"
LEAST_FOR_TRITON = 7, 0  # compute capability: https://github.com/triton-lang/triton#compatibility


class MemoryFormat(Knob):
    """Layout of images and convolution weights; channels_last (NHWC) suits many kernels.

    It helps convolutional networks most, above all on GPUs with tensor cores together with lower
    precision. Models with few convolutions can become slower, because operators without NHWC
    kernels convert their inputs.
    """

    name = "memory_format"
    changes = MayChange.ROUNDING
    value_type = str
    choices = ("contiguous", "channels_last")
    usual = "contiguous"

    def domain(self, here: Here) -> Domain | NotOffered:
        if not here.profile.model.conv2d_layers:
            return NotOffered("the model has no 2-D convolution")
        if here.profile.model.channels_last:
            return NotOffered("the program already uses this layout")
        if any("LBFGS" in optimizer.families for optimizer in here.profile.optimizers):
            return NotOffered("LBFGS reads gradients in the order in which they lie in memory")
        return Domain(self.choices)


class Compile(Knob):
    """torch.compile mode of the model; compiling costs seconds to minutes at the start of each run.

    Compiled models run fewer and larger kernels. They pay in long runs, and in models with many
    small operators most. Code that cannot be traced causes graph breaks, and shapes that change
    cause recompilations, which ``-dynamic`` avoids by slower code for any shape; the report counts
    both.
    """

    name = "compile"
    changes = MayChange.ROUNDING
    value_type = str
    choices = (
        "off",
        "default",
        "default-dynamic",
        "reduce-overhead",
        "max-autotune-no-cudagraphs",
    )
    usual = "off"
    flag_names = ("compile", "torch_compile", "compile_model")
    flag_states = ("off", "default")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return the modes that differ from each other on the device.

        All modes are offered on CUDA. Elsewhere only off and default are: reduce-overhead needs
        CUDA graphs, and max-autotune tunes no more than the default does while weights change.
        default-dynamic is for users who name it: torch itself makes a second shape dynamic.
        """
        if here.profile.model.is_compiled:
            return NotOffered("the program compiles its model itself")
        # Inductor, the default back end, generates C++ for the CPU and Triton kernels for CUDA.
        if here.profile.device == "cpu" and not here.hardware.has_cxx_compiler:
            return NotOffered("compiling for the CPU needs a C++ compiler (install g++)")
        if here.profile.device != "cuda":
            return Domain(("off", "default"))
        if (here.hardware.compute_capability or LEAST_FOR_TRITON) < LEAST_FOR_TRITON:
            return NotOffered("compiling needs a GPU of compute capability 7.0 or later")
        return Domain(tuple(mode for mode in self.choices if not mode.endswith(DYNAMIC)))

    def refusal(self, value: KnobValue, here: Here) -> str | None:
        if value == "reduce-overhead" and here.profile.device != "cuda":
            return f"reduce-overhead replays CUDA graphs; the model is on the {here.profile.device}"
        return None

    def flag_domain(self, flag: Flag, here: Here) -> Domain | None:
        cannot = here.profile.device == "cpu" and not here.hardware.has_cxx_compiler
        return None if cannot else super().flag_domain(flag, here)


class Optimizer(Knob):
    """How the optimizer updates its parameters: one by one, in lists, or in one fused kernel.

    It helps models with many small parameters, where a loop launches many small kernels. foreach
    needs about as much extra memory as the parameters. Results differ only by rounding.
    """

    name = "optimizer"
    changes = MayChange.ROUNDING
    value_type = str
    choices = ("for-loop", "foreach", "fused")

    def domain(self, here: Here) -> Domain | NotOffered:
        if refusal := here.profile.without_optimizer(", without a torch optimizer"):
            return refusal
        # One value holds for all optimizers, so each of them must have it.
        offers = [set(optimizer.implementations) for optimizer in here.profile.optimizers]
        common = set.intersection(*offers) if offers else set()
        if len(common) < 2:
            names = " and ".join(optimizer.name for optimizer in here.profile.optimizers)
            return NotOffered(f"only one implementation works here for {names}")
        if len({optimizer.implementation for optimizer in here.profile.optimizers}) > 1:
            return NotOffered("the program's optimizers differ in their implementation")
        return Domain(tuple(choice for choice in self.choices if choice in common))

    def current(self, profile: Profile) -> KnobValue:
        return profile.optimizers[0].implementation
