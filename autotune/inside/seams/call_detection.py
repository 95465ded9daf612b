"""The seam that notes whether the program calls certain functions of PyTorch.

A call of one tells which knobs make sense for the program: for example, the choice of an attention
backend has an effect only if the program calls ``scaled_dot_product_attention``.
"""

from __future__ import annotations

from typing import Any

from torch import autograd
from torch.nn import functional
from torch.utils import checkpoint

from autotune.inside.hubs.patches import Patches, Seam

WATCHED = (
    (functional, "scaled_dot_product_attention"),
    (checkpoint, "checkpoint"),
    (autograd, "grad"),
)


class CallDetectionSeam(Seam):
    """Notes which of the watched functions the program calls in its first, untouched steps.

    ``SeamSet`` installs it where the program is observed for its profile, and removes it after the
    third step. It changes no result; the note is made on the thread of the call.

    Attributes:
        seen: Names of the watched functions that were called.
    """

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self._patches = Patches()

    def install(self) -> None:
        """Begin to note calls."""
        for module, name in WATCHED:
            self._watch(module, name)

    def _watch(self, module: Any, name: str) -> None:
        original = getattr(module, name)
        seam = self

        def call(*args: Any, **kwargs: Any) -> Any:
            seam.seen.add(name)
            return original(*args, **kwargs)

        self._patches.replace(module, name, call)
