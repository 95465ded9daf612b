"""The strategy of programs that distribute themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.knobs.base import Here
from autotune.knobs.strategies.base import Site, Strategy

if TYPE_CHECKING:
    from torch import nn


class Own(Strategy):
    """The program's own: autotune launches its ranks and leaves the rest to it."""

    name = "own"

    def refusal(self, here: Here) -> str | None:
        """Return that the program knows nothing of ranks, if so."""
        return None if here.profile.distributes_itself else "the program does not distribute itself"

    def distribute(self, module: nn.Module, site: Site) -> nn.Module:
        """Leave the model alone."""
        return module
