"""The strategy ``ddp``: ``torch.nn.parallel.DistributedDataParallel``.

It suits models that fit on each device; ``zero1`` and ``fsdp`` need less memory per rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.knobs.base import Here
from autotune.knobs.strategies.base import Site, Strategy, ranks_refusal, wrapped_by_ddp

if TYPE_CHECKING:
    from torch import nn


class Ddp(Strategy):
    """DistributedDataParallel: each rank trains a copy of the model on its share of each batch.

    Gradients are averaged over the ranks during the backward pass. Every rank needs memory for the
    whole model, its gradients and its optimizer state.
    """

    name = "ddp"

    def refusal(self, here: Here) -> str | None:
        """Return why several ranks cannot train this program, as a clause, or None."""
        return ranks_refusal(here.hardware, here.profile)

    def distribute(self, module: nn.Module, site: Site) -> nn.Module:
        """Return the model wrapped in DDP; the program keeps its unwrapped model."""
        return wrapped_by_ddp(module, site)

    def sync_gradients(self, called: Any, *, enabled: bool) -> None:
        """Set the attribute that DDP's ``no_sync()`` sets.

        The context manager itself cannot be used, because forward and backward happen in the
        program's code.
        """
        called.require_backward_grad_sync = enabled
