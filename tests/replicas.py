"""nn.DataParallel on two devices, both of which are the CPU.

torch moves tensors between devices in C++ (``torch.nn.parallel._functions``), which takes GPUs
alone, so that is replaced here, at the methods that ``DataParallel.forward`` calls. The threads of
replicas are torch's own (``torch.nn.parallel.parallel_apply``), which ask ``torch.accelerator`` for
devices.
"""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

ACCELERATOR = {
    "is_available": lambda: True,
    "current_accelerator": lambda: torch.device("cpu"),
    "current_stream": lambda _: nullcontext(),
    "device_index": lambda _: nullcontext(),
}


class Replica(nn.Module):
    """A copy of a model, which has no parameters, as with torch (``nn.parallel.replicate``)."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.call = module.forward

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.call(*inputs, **kwargs)


class Replicated(nn.DataParallel[nn.Module]):
    """A model with two replicas."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)  # torch's would take the devices of this machine
        self.module = module
        self.device_ids = [0, 1]
        self.output_device = self.dim = 0
        self.src_device_obj = torch.device("cpu")

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        parts = inputs[0].chunk(len(device_ids))
        return [(part,) for part in parts], [kwargs for _ in parts]

    def replicate(self, module: nn.Module, device_ids: Any) -> list[nn.Module]:
        return [Replica(module) for _ in device_ids]

    def parallel_apply(self, replicas: Any, inputs: Any, kwargs: Any) -> list[Any]:
        asks = torch.is_autocast_enabled  # of CUDA, unless a device is named
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "is_autocast_enabled", lambda device="cpu": asks(device))
            for name, answer in ACCELERATOR.items():
                patch.setattr(torch.accelerator, name, answer)
            return super().parallel_apply(replicas, inputs, kwargs)

    def gather(self, outputs: Any, output_device: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return torch.cat([output if output.dim() else output.view(1) for output in outputs])
