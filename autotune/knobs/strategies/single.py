"""The strategies that leave the program's models alone: ``single`` and ``own``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.knobs.base import Here
from autotune.knobs.strategies.base import Site, Strategy

if TYPE_CHECKING:
    from torch import nn


class Single(Strategy):
    """One process on one device, as the program is written."""

    name = "single"

    def distribute(self, module: nn.Module, site: Site) -> nn.Module:
        """Return the model unchanged."""
        return module


class Own(Single):
    """The program's own distribution: autotune starts its ranks and leaves the rest to it.

    Examples are programs that call ``torch.distributed`` or DDP, and trainers of libraries. The
    number of ranks can still be searched, and so can DDP's options if the program uses DDP.
    """

    name = "own"
    launches_ranks = True

    def refusal(self, here: Here) -> str | None:
        """Return a reason if the program does not distribute its model."""
        is_own = here.profile.ranks.distributed_by
        return None if is_own else "the program does not distribute itself"
