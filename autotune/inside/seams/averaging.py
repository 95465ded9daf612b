"""The seam that averages gradients of single parameters over the ranks, after each backward pass.

It is used where the strategy (such as DDP) does not average: in the first step, when it is not yet
known which parameters get gradients; for parameters that no called model owns; for a model of which
a part is frozen at present.

All ranks go through the same list in the same order, because each collective call must meet its
counterparts. A gradient that only some ranks have counts as zero on the others. Averaging a
gradient a second time does not change it.
"""

from __future__ import annotations

import torch
from torch import distributed, nn

from autotune.inside.hubs.backward import BackwardListener, BackwardPass
from autotune.inside.ranks.group import Group
from autotune.inside.seams.accumulation import AccumulationSeam


class AveragingSeam(BackwardListener):
    """Averages the gradients that the strategy leaves to it.

    The distribution seam owns it. Averaging takes place at the end of each outermost backward pass,
    on the thread that called it; micro-batches whose step is held back are not averaged.

    Args:
        group: The processes that train together.
        accumulation: Tells which micro-batches make no step.

    Attributes:
        parameters: Those whose gradients are averaged here; the same on all ranks.
    """

    def __init__(self, group: Group, accumulation: AccumulationSeam) -> None:
        self.parameters: list[nn.Parameter] = []  # strong references: ranks must keep the same
        self._group = group
        self._accumulation = accumulation

    def after_backward(self, call: BackwardPass) -> None:  # noqa: ARG002
        """Average what a pass has computed."""
        trained = [p for p in self.parameters if p.requires_grad]
        if not trained or self._accumulation.holds:
            return
        # A rank without a gradient must take part as well, else the others wait for it.
        device = trained[0].device
        has = torch.tensor([p.grad is not None for p in trained], dtype=torch.uint8, device=device)
        distributed.all_reduce(has, distributed.ReduceOp.MAX)
        for parameter, is_there in zip(trained, has.tolist(), strict=True):
            if is_there:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                distributed.all_reduce(parameter.grad)
                parameter.grad /= self._group.world_size


def send_out(tensor: torch.Tensor) -> None:
    """Overwrite a tensor on all ranks with the first rank's values."""
    tensor = tensor.detach()
    distributed.broadcast(tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor, 0)
