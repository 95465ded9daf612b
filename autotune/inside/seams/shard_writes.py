"""The seam at ``.data =`` of sharded tensors, where torch would change nothing and not say so.

A DTensor keeps its numbers in a tensor within it, which assigning to ``.data`` does not reach: an
optimizer that puts weights back in this way, as SAM does, would go on with others.
"""

from __future__ import annotations

from typing import Any

import torch

from autotune.inside.seams.base import Patches


class ShardWritesSeam:
    """Ends a program that assigns to ``.data`` of a sharded tensor; installed where one is made."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._is_installed = False

    def install(self) -> None:
        """Begin to act."""
        if self._is_installed:
            return
        self._is_installed = True
        from torch.distributed.tensor import DTensor

        def refuse(tensor: torch.Tensor, value: Any) -> None:  # noqa: ARG001
            raise RuntimeError(
                "the program assigns to .data of a tensor that fsdp has sharded, which would "
                "change nothing. Write .data.copy_(...) instead, or leave fsdp out of the search."
            )

        original: Any = torch.Tensor.data
        self._patches.replace(DTensor, "data", property(original.__get__, refuse))

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        self._is_installed = False
        self._patches.undo()
