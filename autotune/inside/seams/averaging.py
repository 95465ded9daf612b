"""The seam that averages gradients of single parameters over the ranks, after each backward pass.

It serves the first step, in which it is not known yet which parameters get gradients, and whatever
no called model owns: parameters outside of modules, models and parameter groups that come later,
frozen parts that are trained at last, models that several backward passes reach after one call:
DDP averages the first of these alone. All ranks go through the same list in the same order; a
gradient that only some of them have counts as zero on the others. What is averaged twice stays as
it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import distributed, nn

from autotune.inside.ranks.dtensor import is_sharded
from autotune.inside.ranks.group import Group
from autotune.inside.seams.accumulation import AccumulationSeam
from autotune.inside.seams.base import Patches, Seam, outermost


class Reached:
    """How often backward passes reach a model's parameters.

    Attributes:
        parameters: Those that are watched.
        passes: Since the model was last called.
        several: More than one pass has reached them after one call.
        is_left: Another averages their gradients.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = parameters
        self.passes = 0
        self.several = False
        self.is_left = False
        self._before: list[tuple[int, int]] = []

    def note(self) -> None:
        """A backward pass comes."""
        self._before = self._gradients()

    def compare(self) -> None:
        """A backward pass is over; which models it reaches is the same on all ranks."""
        self.passes += self._gradients() != self._before
        self.several = self.several or self.passes > 1

    def _gradients(self) -> list[tuple[int, int]]:
        return [(id(p.grad), p.grad._version) for p in self.parameters if p.grad is not None]  # noqa: SLF001


class AveragingSeam(Seam):
    """Averages what it was told of, until it is told that another takes over.

    Args:
        group: The processes that train together.
        accumulation: Tells which batches make no step.
    """

    def __init__(self, group: Group, accumulation: AccumulationSeam) -> None:
        self._group = group
        self._accumulation = accumulation
        self._alone: list[nn.Parameter] = []  # held: ranks must not lose one at different times
        self._models: list[Reached] = []
        self._patches = Patches()

    def install(self) -> None:
        """Begin to average."""
        original = torch.autograd.backward
        seam = self

        def backward(*args: Any, **kwargs: Any) -> None:
            for model in seam._models:
                model.note()
            original(*args, **kwargs)
            for model in seam._models:
                model.compare()
            if seam._accumulation.holds:
                return
            seam._average(seam._alone)
            for model in seam._models:
                if model.is_left and model.passes > 1:
                    seam._average(model.parameters)

        self._patches.replace(torch.autograd, "backward", outermost(backward, original))

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        self._patches.undo()
        self._alone.clear()
        self._models.clear()

    def add(self, parameters: Iterable[nn.Parameter], owned: Iterable[nn.Parameter]) -> None:
        """Average these as well; those that no called model owns take the first rank's values."""
        known = {id(p) for p in (*self._alone, *owned)}
        for parameter in parameters:
            if not is_sharded(parameter) and id(parameter) not in known:
                send_out(parameter)
                self._alone.append(parameter)

    def drop(self, parameters: Iterable[nn.Parameter]) -> None:
        """Forget these: others come in their place."""
        self._alone = _without(self._alone, parameters)

    def watch(self, parameters: Sequence[nn.Parameter]) -> Reached:
        """Average those of a model from here on; they are equal on all ranks already."""
        model = Reached(parameters)
        self._models.append(model)
        self.hold(model)
        return model

    def hold(self, model: Reached) -> None:
        """Average those of a model again, one by one."""
        model.is_left = False
        self._alone = [*_without(self._alone, model.parameters), *model.parameters]

    def release(self, model: Reached) -> None:
        """Leave those of a model to another."""
        model.is_left = True
        self._alone = _without(self._alone, model.parameters)

    def _average(self, parameters: Sequence[nn.Parameter]) -> None:
        trained = [p for p in parameters if p.requires_grad]
        if not trained:
            return
        device = trained[0].device
        has = torch.tensor([p.grad is not None for p in trained], dtype=torch.uint8, device=device)
        distributed.all_reduce(has, distributed.ReduceOp.MAX)
        for parameter, is_there in zip(trained, has.tolist(), strict=True):
            if not is_there:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            distributed.all_reduce(parameter.grad)
            parameter.grad /= self._group.world_size


def send_out(tensor: torch.Tensor) -> None:
    """Give all ranks the first one's values."""
    tensor = tensor.detach()
    distributed.broadcast(tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor, 0)


def _without(
    parameters: Iterable[nn.Parameter], gone: Iterable[nn.Parameter]
) -> list[nn.Parameter]:
    ids = {id(p) for p in gone}
    return [p for p in parameters if id(p) not in ids]
