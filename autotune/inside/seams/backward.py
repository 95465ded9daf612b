"""The seam at ``Tensor.backward``: it sees the loss where the program computes gradients.

The listener keeps the last loss, to notice one that is not finite.
"""

from __future__ import annotations

from typing import Any

import torch

from autotune.inside.listener import Listener
from autotune.inside.seams.base import Patches, Seam


class BackwardSeam(Seam):
    """Tells the listener each tensor on which the program calls ``backward()``.

    ``SeamSet`` makes it only where a listener measures. The listener is called before the backward
    pass, on the thread of the program that starts it.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._patches = Patches()

    def install(self) -> None:
        """Begin to tell the listener."""
        original = torch.Tensor.backward
        listener = self._listener

        def backward(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            listener.loss_seen(tensor)
            original(tensor, *args, **kwargs)  # type: ignore[no-untyped-call]

        self._patches.replace(torch.Tensor, "backward", backward)
