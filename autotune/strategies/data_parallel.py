"""The strategy of nn.DataParallel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.hardware import Hardware
from autotune.profile import Profile
from autotune.strategies.base import Site, Strategy, shares_refusal

if TYPE_CHECKING:
    from torch import nn


class DataParallel(Strategy):
    """nn.DataParallel: one process copies the model to all GPUs in each step; ddp usually wins."""

    name = "data_parallel"
    launches_ranks = False

    def refusal(self, hardware: Hardware, profile: Profile) -> str | None:
        """Return that it needs two GPUs, or a program that can be shared out."""
        if profile.device != "cuda" or len(hardware.gpus) < 2:
            return "nn.DataParallel needs two GPUs"
        return shares_refusal(hardware, profile)

    def distribute(self, module: nn.Module, site: Site) -> nn.Module:  # noqa: ARG002
        """Wrap the model for its training calls."""
        from torch import nn

        return nn.DataParallel(module)
