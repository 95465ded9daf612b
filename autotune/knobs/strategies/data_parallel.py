"""The strategy of nn.DataParallel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.knobs.base import Here
from autotune.knobs.strategies.base import Site, Strategy, shares_refusal

if TYPE_CHECKING:
    from torch import nn


class DataParallel(Strategy):
    """nn.DataParallel: one process copies the model to all GPUs in each step; ddp usually wins."""

    name = "data_parallel"
    launches_ranks = False

    def refusal(self, here: Here) -> str | None:
        """Return that it needs two GPUs, or a program that can be shared out."""
        if here.profile.device != "cuda" or len(here.hardware.gpus) < 2:
            return "nn.DataParallel needs two GPUs"
        return shares_refusal(here.hardware, here.profile)

    def distribute(self, module: nn.Module, site: Site) -> nn.Module:
        """Wrap the model for its training calls."""
        from torch import nn

        return nn.DataParallel(module)
