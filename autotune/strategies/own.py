"""The strategy of programs that distribute themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.hardware import Hardware
from autotune.profile import Profile
from autotune.strategies.base import Site, Strategy

if TYPE_CHECKING:
    from torch import nn


class Own(Strategy):
    """The program's own: autotune launches its ranks and leaves the rest to it."""

    name = "own"

    def refusal(self, hardware: Hardware, profile: Profile) -> str | None:  # noqa: ARG002
        """Return that the program knows nothing of ranks, if so."""
        return None if profile.distributes_itself else "the program does not distribute itself"

    def distribute(self, module: nn.Module, site: Site) -> nn.Module:  # noqa: ARG002
        """Leave the model alone."""
        return module
