"""The strategy of a sequential model whose stages lie on several GPUs."""

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
FULL = 0.5  # of a GPU by states alone leaves too little for activations of most models


class ModelSplit(Strategy):
    """A sequential model cut into stages, one per GPU, with parts of a batch in all of them."""

    name = "model_split"
    launches_ranks = False

    def refusal(self, here: Here) -> str | None:
        """Return that the model cannot be cut, or need not be."""
        if here.profile.device != "cuda" or len(here.hardware.gpus) < 2:
            return "stages need two GPUs"
        if here.profile.distributes_itself:
            return f"the program distributes itself ({here.profile.distributes_itself})"
        if without := here.profile.without_optimizer("and may expect them on one device"):
            return without.reason
        if here.profile.stages < 2:
            return "the model is no nn.Sequential of several parts"
        smallest = min(gpu.memory_bytes for gpu in here.hardware.gpus)
        if here.profile.parameters * STATE_BYTES_PER_PARAMETER < FULL * smallest:
            return "the model fits one GPU, where its stages need not wait for each other"
        return None

    def distribute(self, module: nn.Module, site: Site) -> nn.Module:
        """Place the stages; the optimizers keep the parameters, which move within themselves."""
        import torch
        from torch import nn

        assert isinstance(module, nn.Sequential), "refused for any other model"
        count = torch.cuda.device_count()
        devices = [torch.device("cuda", number) for number in range(count)]
        parts = int(site.options.get("model_split_parts", count))
        return Pipeline(module, devices, parts).staged()


class Pipeline:
    """Cuts a sequential model into stages of about equal weight, and feeds them.

    A batch goes through in equal parts. Work is queued on a GPU without waiting, so while one GPU
    has the second part, the next one has the first. Parameters move to their stage's device in
    place, so optimizers built before go on with them.

    Args:
        model: A sequential model.
        devices: Of the stages, in order.
        parts: How many parts of a batch are under way together.
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
        """Return a module that calls the stages; it owns no parameters beside the model's."""
        from torch import nn

        pipeline = self

        class Staged(nn.Module):
            def forward(self, batch: torch.Tensor) -> torch.Tensor:
                return pipeline(batch)

        return Staged()

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the model's output, on the device of its input."""
        import torch

        home = batch.device
        parts = list(batch.chunk(min(self._parts, batch.shape[0])))
        done: list[Any] = [None] * len(parts)
        children = list(self._model)
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
    """Return runs of neighbours, at most *stages*, each of about an equal share of the weight."""
    total, so_far = max(1, sum(weights)), 0
    runs: list[list[int]] = [[] for _ in range(stages)]
    for number, weight in enumerate(weights):
        middle = so_far + weight / 2
        runs[min(stages - 1, int(middle * stages / total))].append(number)
        so_far += weight
    return [run for run in runs if run]


def _weight(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
