"""The seam at functions of PyTorch that say something about a program: whether it calls them."""

from __future__ import annotations

from typing import Any

from torch import autograd
from torch.nn import functional
from torch.utils import checkpoint

from autotune.inside.seams.base import Patches, Seam

WATCHED = (
    (functional, "scaled_dot_product_attention"),
    (checkpoint, "checkpoint"),
    (autograd, "grad"),
)


class CallDetectionSeam(Seam):
    """Watches the program call some functions during the untouched steps; changes nothing.

    Attributes:
        seen: Names of those it called.
    """

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self._patches = Patches()

    def install(self) -> None:
        """Begin to watch."""
        for module, name in WATCHED:
            self._watch(module, name)

    def _watch(self, module: Any, name: str) -> None:
        original = getattr(module, name)
        seam = self

        def call(*args: Any, **kwargs: Any) -> Any:
            seam.seen.add(name)
            return original(*args, **kwargs)

        self._patches.replace(module, name, call)
