"""The seam at ``zero_grad``: it sees how the program clears gradients, for those that hold it back.

Not covered: gradients that the program sets to None itself.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.seams.accumulation import AccumulationSeam


class ClearingSeam(Seam):
    """Carries out the ``zero_grad`` of optimizers and modules.

    The replaced functions run where the program calls them, on its training thread.

    Attributes:
        own_to_none: Whether the program's calls set gradients to None. False if it asked for zeros
            at least once; None if it has never called ``zero_grad``.
    """

    def __init__(self, accumulation: AccumulationSeam) -> None:
        self._accumulation = accumulation
        self._patches = Patches()
        self.own_to_none: bool | None = None

    def install(self) -> None:
        """Replace ``zero_grad`` of optimizers and modules."""
        self._follow(Optimizer)
        self._follow(nn.Module)

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        self._patches.undo()

    def _follow(self, owner: type[Optimizer] | type[nn.Module]) -> None:
        original = owner.zero_grad
        seam = self

        def zero_grad(target: Any, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002
            seam.own_to_none = set_to_none and seam.own_to_none is not False
            if seam._accumulation.clears(target, to_none=set_to_none):
                original(target, set_to_none)

        self._patches.replace(owner, "zero_grad", zero_grad)
