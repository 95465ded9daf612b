"""The strategy of DistributedDataParallel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.knobs.base import Here
from autotune.knobs.strategies.base import Site, Strategy, ranks_refusal, wrapped_by_ddp

if TYPE_CHECKING:
    from torch import nn


class Ddp(Strategy):
    """DistributedDataParallel: each rank trains on its share, gradients are averaged on the way."""

    name = "ddp"

    def refusal(self, here: Here) -> str | None:
        """Return why the data cannot be shared out."""
        return ranks_refusal(here.hardware, here.profile)

    def distribute(self, module: nn.Module, site: Site) -> nn.Module:
        """Return DDP around the model; the program keeps calling the model itself."""
        return wrapped_by_ddp(module, site)

    def sync_gradients(self, called: Any, *, enabled: bool) -> None:
        """Do what DDP's own ``no_sync()`` does."""
        called.require_backward_grad_sync = enabled
