"""The switches that torch keeps per process: threads, cuDNN, attention, and denormal numbers.

Sources: PyTorch documentation, ``torch.set_num_threads``, ``torch.set_flush_denormal``,
``torch.backends.cudnn.benchmark``, ``torch.backends.cuda`` and
``torch.nn.functional.scaled_dot_product_attention``. For what PyTorch keeps of a shape,
``aten/src/ATen/native/cudnn/Conv_v8.cpp`` and https://github.com/pytorch/pytorch/issues/45372.
"""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Scope
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.may_change import MayChange
from autotune.program.profile import Profile


class ProcessSwitch(Knob):
    """A setting that torch keeps per process.

    The profile and the seam of torch's settings both know it by the knob's name.
    """

    def current(self, profile: Profile) -> KnobValue:
        value: KnobValue = getattr(profile.settings, self.name)
        return value


class Threads(ProcessSwitch):
    """Number of threads per CPU operator; fewer leave cores to the loader's workers.

    More threads speed up large operators. Small operators lose more to starting and joining threads
    than they gain, and threads beyond the free cores slow each other down.
    """

    name = "threads"
    changes = MayChange.ROUNDING
    value_type = int
    minimum = 1

    def domain(self, here: Here) -> Domain | NotOffered:
        device, cores = here.profile.device, here.hardware.cpu_quota
        if cores == 1:
            return NotOffered("there is one core")
        # Halvings cover the range in few trials; one core less leaves room for loading.
        counts = {
            start >> halvings
            for start in (cores, cores - 1)
            for halvings in range(start.bit_length())
        }
        domain = Domain(tuple(sorted(counts)))
        if device == "cpu":
            return domain
        # Augmentation in the program's process uses them beside a GPU too, which seldom matters
        loads_itself = not all(loader.num_workers for loader in here.profile.loaders)
        return NotOffered(
            f"the model computes on the {device} device", by_name=domain if loads_itself else None
        )


class FlushDenormal(ProcessSwitch):
    """Treat denormal (extremely small) numbers as 0, because CPUs compute with them slowly.

    It helps where activations or optimizer state decay towards 0. fp32 numbers below about 1e-38
    are lost.
    """

    name = "flush_denormal"
    changes = MayChange.ROUNDING
    is_hidden = True
    scope = Scope.RESTART  # threads inherit the mode from the thread that starts them
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        if here.profile.device != "cpu":
            return NotOffered(f"the model computes on the {here.profile.device} device")
        return Domain((False, True))


# Dynamo guards no attention flag: seen with torch 2.11 and 2.14
KEEPS_KERNEL = "compiled code keeps the attention kernel with which it was traced first"


class Cudnn(ProcessSwitch):
    """How cuDNN chooses its convolution algorithms: by rules, or by timing each new input shape.

    Timing (``benchmark``) helps convolutional networks with a fixed input shape. It hurts where
    shapes change often, because each new shape is timed again. The chosen algorithm may differ from
    run to run.
    """

    name = "cudnn"
    changes = MayChange.ROUNDING
    scope = Scope.RESTART  # PyTorch keeps the algorithm that a shape got first, timed or not
    value_type = str
    choices = ("default", "benchmark")

    def domain(self, here: Here) -> Domain | NotOffered:
        if here.profile.device != "cuda":
            return NotOffered(f"the model is on the {here.profile.device} device; cuDNN needs CUDA")
        if not here.profile.model.convolutions:
            return NotOffered("the model has no convolution")
        return Domain(self.choices)


class Attention(ProcessSwitch):
    """Kernel of scaled dot-product attention; auto lets PyTorch choose for each call.

    The fused kernels (flash, efficient, cudnn) avoid storing the attention matrix and are usually
    faster; math is the plain computation. Which fused kernel wins depends on shapes, dtype and GPU.
    Kernels round differently. math stays enabled together with the chosen one, for inputs that this
    does not support, such as an evaluation in fp32 or an unusual mask.
    """

    name = "attention"
    changes = MayChange.ROUNDING
    value_type = str
    choices = ("auto", "flash", "efficient", "math", "cudnn")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return the kernels that exist for the device, if the program calls the function.

        The CPU has flash and math. The kernels of a GPU follow from its compute capability.
        """
        if here.profile.settings.attention is None:
            return NotOffered("the program does not call scaled_dot_product_attention")
        if here.profile.model.is_compiled:
            return NotOffered(KEEPS_KERNEL)
        if here.profile.device == "cpu":
            return Domain(("auto", "flash", "math"))
        if here.profile.device != "cuda":
            return NotOffered(f"the {here.profile.device} device has only one attention kernel")
        capability = here.hardware.compute_capability
        # FlashAttention needs Ampere (compute capability 8.0). It is left out where the capability
        # is unknown.
        if capability is None or capability < (8, 0):
            return Domain(("auto", "efficient", "math"))
        return Domain(self.choices if capability >= (9, 0) else self.choices[:-1])
