"""The seam that averages gradients of single parameters over the ranks, after each backward pass.

It serves the first step, in which it is not known yet which parameters get gradients, and whatever
no called model owns: parameters outside of modules, models and parameter groups that come later,
frozen parts that are trained at last. All ranks go through the same list in the same order; a
gradient that only some of them have counts as zero on the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import distributed, nn

from autotune.inside.group import Group
from autotune.inside.seams.accumulation import AccumulationSeam
from autotune.inside.seams.base import Patches
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
        self._patches = Patches()

    def install(self) -> None:
        """Begin to average."""
        original = torch.autograd.backward
        seam = self

        def backward(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            if seam._alone and not seam._accumulation.holds:
                seam._average()

        self._patches.replace(torch.autograd, "backward", backward)

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        self._patches.undo()
        self._alone.clear()

    def add(self, parameters: Iterable[nn.Parameter], owned: Iterable[nn.Parameter]) -> None:
        """Average these as well; those that no called model owns take the first rank's values."""
        known = {id(p) for p in (*self._alone, *owned)}
        for parameter in parameters:
            if not is_sharded(parameter) and id(parameter) not in known:
                send_out(parameter)
                self._alone.append(parameter)

    def hold(self, parameters: Iterable[nn.Parameter]) -> None:
        """Average these from here on; they are equal on all ranks already."""
        known = {id(p) for p in self._alone}
        self._alone += [p for p in parameters if id(p) not in known]

    def release(self, parameters: Iterable[nn.Parameter]) -> None:
        """Leave these to another."""
        gone = {id(p) for p in parameters}
        self._alone = [p for p in self._alone if id(p) not in gone]

    def _average(self) -> None:
        trained = [p for p in self._alone if p.requires_grad]
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
