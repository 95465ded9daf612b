"""The seam at ``Tensor.backward``: the loss is seen where the program computes gradients."""

from __future__ import annotations

from typing import Any

import torch

from autotune.inside.listener import Listener
from autotune.inside.seams.base import Patches, Seam


class BackwardSeam(Seam):
    """Tells the listener each tensor on which the program calls ``backward()``."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._patches = Patches()

    def install(self) -> None:
        """Begin to listen."""
        original = torch.Tensor.backward
        listener = self._listener

        def backward(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            listener.loss_seen(tensor)
            original(tensor, *args, **kwargs)  # type: ignore[no-untyped-call]

        self._patches.replace(torch.Tensor, "backward", backward)
