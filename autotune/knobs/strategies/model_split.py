"""The strategy ``model_split``: a sequential model whose stages lie on several GPUs.

It is for models that do not fit on one GPU. A batch is cut into parts, as in GPipe (Huang et al.
2019), so that the GPUs work on different parts at the same time. torch's own
``torch.distributed.pipelining`` needs one process per stage, and a program that calls its schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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
        gpus, profile = here.hardware.gpus, here.profile
        if profile.device != "cuda" or len(gpus) < 2:
            return "stages need two GPUs"
        if profile.ranks.distributed_by:
            return f"the program distributes itself ({profile.ranks.distributed_by})"
        if without := profile.without_optimizer(", and may expect its weights on one device"):
            return without.reason
        if profile.model.stages < 2:
            return "the model is not an nn.Sequential of several parts"
        smallest = min((g.memory_bytes for g in gpus if g.memory_bytes is not None), default=0)
        if profile.model.parameters * STATE_BYTES_PER_PARAMETER < FULL * smallest:
            return "the model fits on one GPU, where no stage waits for another"
        return None

    def distribute(self, module: nn.Module, site: Site) -> nn.Module:
        import torch
        from torch import nn

        assert isinstance(module, nn.Sequential), "refused for any other model"
        devices = [torch.device("cuda", n) for n in range(torch.cuda.device_count())]
        return staged(module, devices, parts=len(devices))


def staged(model: nn.Sequential, devices: Sequence[torch.device], parts: int) -> nn.Module:
    """Move the stages of a model to their devices; return a module that runs them.

    It returns the model's output on the batch's device. CUDA queues work without waiting, so one
    GPU computes the second part of a batch while the next GPU computes the first.

    Args:
        model: A sequential model, cut into stages with about equal numbers of parameters.
        devices: Devices of the stages, in order.
        parts: Number of parts into which a batch is cut; a smaller batch becomes single samples.
    """
    import torch
    from torch import nn

    children = list(model)
    stages = cut([sum(p.numel() for p in child.parameters()) for child in children], len(devices))
    for stage, device in zip(stages, devices, strict=False):
        for number in stage:
            children[number].to(device)

    class Staged(nn.Module):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            values = list(batch.chunk(min(parts, batch.shape[0])))
            # At each tick, stage s works on part (tick - s). Later stages go first: they use what
            # the stage before them computed at the previous tick.
            for tick in range(len(values) + len(stages) - 1):
                for place in reversed(range(len(stages))):
                    part = tick - place
                    if 0 <= part < len(values):
                        value = values[part].to(devices[place], non_blocking=True)
                        for number in stages[place]:
                            value = children[number](value)
                        values[part] = value
            return torch.cat([value.to(batch.device) for value in values])

    return Staged()


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
