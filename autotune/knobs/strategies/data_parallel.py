"""The strategy ``data_parallel``: ``torch.nn.DataParallel``.

It needs no ranks and no launcher, so it is the one way to use several GPUs from a single process
without cutting the model. PyTorch's documentation recommends DistributedDataParallel instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.knobs.base import Here
from autotune.knobs.strategies.base import Site, Strategy, shares_refusal

if TYPE_CHECKING:
    from torch import nn


class DataParallel(Strategy):
    """nn.DataParallel: one process copies the model to all GPUs in each step; ddp is often faster.

    Each batch is split among the GPUs, and outputs and gradients are gathered on the first one. One
    Python process drives all GPUs, which limits the speed.
    """

    name = "data_parallel"

    def refusal(self, here: Here) -> str | None:
        """Return a reason unless there are two GPUs and a batch can be divided among them."""
        if here.profile.device != "cuda" or len(here.hardware.gpus) < 2:
            return "nn.DataParallel needs two GPUs"
        return shares_refusal(here.hardware, here.profile)

    def distribute(self, module: nn.Module, site: Site) -> nn.Module:
        """Return the model wrapped in ``nn.DataParallel``; only training calls use the wrapper."""
        from torch import nn

        return nn.DataParallel(module)
