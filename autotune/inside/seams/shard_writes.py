"""The seam at writes and hooks of sharded tensors, where torch would do nothing and not say so.

A DTensor keeps its numbers in a tensor within it, which assigning to ``.data`` does not reach: an
optimizer that puts weights back in this way, as SAM does, would go on with others. What is changed
in place through ``.data`` is changed. A hook on the gradient of a sharded parameter is not called:
backward passes go through gathered ones.

Not covered: an alias of a parameter's numbers that was taken before it was sharded.
"""

from __future__ import annotations

from typing import Any

import torch

from autotune.inside.seams.base import Patches


class ShardWritesSeam:
    """Ends a program that writes or hooks in vain; installed where a tensor is first sharded."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._is_installed = False

    def install(self) -> None:
        """Begin to act."""
        if self._is_installed:
            return
        self._is_installed = True
        from torch.distributed.tensor import DTensor

        def set_data(tensor: Any, value: Any) -> None:
            if isinstance(value, DTensor) and _is_same_memory(tensor, value):
                return  # as after "p.data *= 0.5"
            raise RuntimeError(
                "the program assigns to .data of a tensor that fsdp has sharded, which would "
                "change nothing. Write .data.copy_(...) instead, or leave fsdp out of the search."
            )

        original: Any = torch.Tensor.data
        self._patches.replace(DTensor, "data", property(original.__get__, set_data))
        register: Any = torch.Tensor.register_hook

        def register_hook(tensor: torch.Tensor, hook: Any) -> Any:
            if tensor.is_leaf:
                raise RuntimeError(
                    "the program hooks the gradient of a parameter that fsdp has sharded, which "
                    "would never be called. Leave fsdp out of the search, or set strategy to ddp "
                    "in best.yaml."
                )
            return register(tensor, hook)

        self._patches.replace(DTensor, "register_hook", register_hook)

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        self._is_installed = False
        self._patches.undo()


def _is_same_memory(one: Any, other: Any) -> bool:
    """Tell whether two sharded tensors hold the same numbers in the same place."""
    own, its = one._local_tensor, other._local_tensor  # noqa: SLF001 - what .data does not reach
    return bool(own.data_ptr() == its.data_ptr() and own.shape == its.shape)
