"""The strategy ``model_split``: a sequential model whose stages lie on several GPUs.

It is for models that do not fit on one GPU. A batch is cut into parts, as in GPipe (Huang et al.
2019), so that the GPUs work on different parts at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from autotune.knobs.base import Here
from autotune.knobs.strategies.base import Site, Strategy

if TYPE_CHECKING:
    import torch
    from torch import nn

# Weights, gradients and two moments of an Adam-like optimizer, in fp32
STATE_BYTES_PER_PARAMETER = 16
FULL = 0.5  # a GPU filled further by states leaves too little for most models' activations


class ModelSplit(Strategy):
    """A sequential model cut into stages, one per GPU; parts of each batch pass through them.

    Every GPU holds only its stage's weights, gradients and optimizer state. At the start and the
    end of each batch some GPUs wait.
    """

    name = "model_split"

    def refusal(self, here: Here) -> str | None:
        """Return why the model cannot be cut into stages, or does not need it, as a clause.

        A model counts as fitting on one GPU if its states fill less than half of the smallest one.
        """
        if here.profile.device != "cuda" or len(here.hardware.gpus) < 2:
            return "stages need two GPUs"
        if here.profile.ranks.distributed_by:
            return f"the program distributes itself ({here.profile.ranks.distributed_by})"
        if without := here.profile.without_optimizer(", and may expect its weights on one device"):
            return without.reason
        if here.profile.model.stages < 2:
            return "the model is not an nn.Sequential of several parts"
        sizes = [gpu.memory_bytes for gpu in here.hardware.gpus if gpu.memory_bytes is not None]
        smallest = min(sizes, default=0)
        if here.profile.model.parameters * STATE_BYTES_PER_PARAMETER < FULL * smallest:
            return "the model fits on one GPU, where no stage waits for another"
        return None

    def distribute(self, module: nn.Module, site: Site) -> nn.Module:
        """Move each stage to its GPU and return a module that runs them.

        Parameters keep their identity, so the program's optimizers keep training them.
        """
        import torch
        from torch import nn

        assert isinstance(module, nn.Sequential), "refused for any other model"
        count = torch.cuda.device_count()
        devices = [torch.device("cuda", number) for number in range(count)]
        parts = count
        return Pipeline(module, devices, parts).staged()


class Pipeline:
    """Cuts a sequential model into stages with about equal numbers of parameters, and runs them.

    ``ModelSplit.distribute()`` makes one in the program's process; the program's forward pass calls
    it, on the thread that trains. A batch goes through the stages in equal parts. CUDA queues work
    without waiting, so one GPU computes the second part while the next GPU computes the first.

    Args:
        model: A sequential model; its parameters are moved in place, so optimizers that were built
            before keep training them.
        devices: Devices of the stages, in order.
        parts: Number of parts into which a batch is cut.
    """

    def __init__(self, model: nn.Sequential, devices: Sequence[torch.device], parts: int) -> None:
        self._model = model
        self._parts = parts
        self.stages = cut([_weight(child) for child in model], len(devices))
        self._devices = devices
        children = list(model)
        for stage, device in zip(self.stages, devices, strict=False):
            for number in stage:
                children[number].to(device)

    def staged(self) -> nn.Module:
        """Return a module that runs the stages; it has no parameters besides the model's."""
        from torch import nn

        pipeline = self

        class Staged(nn.Module):
            def forward(self, batch: torch.Tensor) -> torch.Tensor:
                return pipeline(batch)

        return Staged()

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the model's output for a batch, on the batch's device.

        A batch with fewer samples than parts is cut into single samples.
        """
        import torch

        home = batch.device
        parts = list(batch.chunk(min(self._parts, batch.shape[0])))
        done: list[Any] = [None] * len(parts)
        children = list(self._model)
        # At each tick, stage s works on part (clock - s). Later stages go first: they use what the
        # stage before them computed at the previous tick.
        for clock in range(len(parts) + len(self.stages) - 1):
            for place in reversed(range(len(self.stages))):
                number = clock - place
                if not 0 <= number < len(parts):
                    continue
                value = parts[number].to(self._devices[place], non_blocking=True)
                for child in self.stages[place]:
                    value = children[child](value)
                parts[number] = done[number] = value
        return torch.cat([value.to(home) for value in done])


def cut(weights: Sequence[int], stages: int) -> list[list[int]]:
    """Return the indices of the children in each stage: neighbours with about equal total weight.

    Empty stages are left out, so there may be fewer than *stages*.
    """
    total, so_far = max(1, sum(weights)), 0
    runs: list[list[int]] = [[] for _ in range(stages)]
    for number, weight in enumerate(weights):
        middle = so_far + weight / 2
        runs[min(stages - 1, int(middle * stages / total))].append(number)
        so_far += weight
    return [run for run in runs if run]


def _weight(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
