"""The strategy ``single``: one process on one device.

It is the baseline of every program that does not distribute itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.knobs.strategies.base import Site, Strategy

if TYPE_CHECKING:
    from torch import nn


class Single(Strategy):
    """One process on one device, as the program is written."""

    name = "single"

    def distribute(self, module: nn.Module, site: Site) -> nn.Module:
        """Return the model unchanged."""
        return module
