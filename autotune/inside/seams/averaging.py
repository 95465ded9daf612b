"""The seam that averages gradients of single parameters over the ranks, after each backward pass.

It serves the first step, in which it is not known yet which parameters get gradients, and whatever
no called model owns: parameters outside of modules, models and parameter groups that come later,
frozen parts that are trained at last. DDP averages the first backward pass after a model's call
alone; after further ones its parameters are averaged here, which changes none that are averaged.
All ranks go through the same list in the same order; a gradient that only some of them have counts
as zero on the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import distributed, nn

from autotune.inside.group import Group
from autotune.inside.seams.accumulation import AccumulationSeam
from autotune.inside.seams.base import Patches, outermost
from autotune.inside.sharded import is_sharded


class AveragingSeam:
    """Averages what it was told of, until it is told that another takes over.

    Args:
        group: The processes that train together.
        accumulation: Tells which batches make no step.
    """

    def __init__(self, group: Group, accumulation: AccumulationSeam) -> None:
        self._group = group
        self._accumulation = accumulation
        self._alone: list[nn.Parameter] = []  # held: ranks must not lose one at different times
        self._left: list[nn.Parameter] = []  # to another
        self._passes = 0  # backward, since a model was called
        self._patches = Patches()

    def install(self) -> None:
        """Begin to average."""
        original = torch.autograd.backward
        seam = self

        def backward(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            seam._passes += 1
            if seam._accumulation.holds:
                return
            seam._average(seam._alone)
            if seam._passes > 1:
                seam._average(seam._left)

        self._patches.replace(torch.autograd, "backward", outermost(backward, original))

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        self._patches.undo()
        self._alone.clear()
        self._left.clear()

    def begin_pass(self) -> None:
        """A model is called, to be trained."""
        self._passes = 0

    def add(self, parameters: Iterable[nn.Parameter], owned: Iterable[nn.Parameter]) -> None:
        """Average these as well; those that no called model owns take the first rank's values."""
        known = {id(p) for p in (*self._alone, *owned)}
        for parameter in parameters:
            if not is_sharded(parameter) and id(parameter) not in known:
                send_out(parameter)
                self._alone.append(parameter)

    def hold(self, parameters: Iterable[nn.Parameter]) -> None:
        """Average these from here on; they are equal on all ranks already."""
        held = list(parameters)
        self._left = _without(self._left, held)
        self._alone = [*_without(self._alone, held), *held]

    def release(self, parameters: Iterable[nn.Parameter]) -> None:
        """Leave these to another."""
        released = list(parameters)
        self._alone = _without(self._alone, released)
        self._left = [*_without(self._left, released), *released]

    def _average(self, parameters: list[nn.Parameter]) -> None:
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


def _without(parameters: list[nn.Parameter], gone: list[nn.Parameter]) -> list[nn.Parameter]:
    ids = {id(p) for p in gone}
    return [p for p in parameters if id(p) not in ids]


def send_out(tensor: torch.Tensor) -> None:
    """Give all ranks the first one's values."""
    tensor = tensor.detach()
    distributed.broadcast(tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor, 0)
