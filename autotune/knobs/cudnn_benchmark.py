"""The knob ``cudnn_benchmark``: whether cuDNN times its algorithms before it chooses one.

It matters to convolutions only.

Sources: PyTorch documentation, ``torch.backends.cudnn.benchmark``; for what PyTorch keeps of a
shape, ``aten/src/ATen/native/cudnn/Conv_v8.cpp`` and https://github.com/pytorch/pytorch/issues/45372.
"""

from __future__ import annotations

from autotune.knobs.base import Here, ProcessSwitch, Scope
from autotune.program.domain import Domain, NotOffered


class CudnnBenchmark(ProcessSwitch):
    """Let cuDNN time its convolution algorithms on each new input shape and keep the fastest.

    It helps convolutional networks with a fixed input shape. It hurts where shapes change often,
    because each new shape is timed again. The chosen algorithm may differ from run to run.

    It acts by ``torch.backends.cudnn.benchmark``, which a convolution reads for new shapes only.
    """

    name = "cudnn_benchmark"
    scope = Scope.RESTART  # PyTorch keeps the algorithm that a shape got first, timed or not
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both values for a model with 2-D convolutions on a GPU."""
        if here.profile.device != "cuda":
            return NotOffered(f"the model is on the {here.profile.device} device; cuDNN needs CUDA")
        if not here.profile.model.conv2d_layers:
            return NotOffered("the model has no 2-D convolution")
        return Domain((False, True))
