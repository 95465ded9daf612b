"""The strategy ``own``: the program distributes its model itself.

Examples are programs that call ``torch.distributed`` or DDP, and trainers of libraries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.knobs.base import Here
from autotune.knobs.strategies.base import Site, Strategy

if TYPE_CHECKING:
    from torch import nn


class Own(Strategy):
    """The program's own distribution: autotune starts its ranks and leaves the rest to it.

    The number of ranks can still be searched, and so can DDP's options if the program uses DDP.
    """

    name = "own"
    launches_ranks = True

    def refusal(self, here: Here) -> str | None:
        """Return a reason if the program does not distribute its model."""
        return (
            None if here.profile.ranks.distributed_by else "the program does not distribute itself"
        )

    def distribute(self, module: nn.Module, site: Site) -> nn.Module:
        """Return the model unchanged."""
        return module
