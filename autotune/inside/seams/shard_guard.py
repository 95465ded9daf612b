"""The seam around sharded parameters: what would be done to them in vain ends with an error.

A program may hold the parameters that its model had before sharded ones came in their place, and
have hooks on them. A DTensor keeps its numbers in a tensor within it, which assigning to ``.data``
does not reach: an optimizer that puts weights back in this way, as SAM does, would go on with
others. A hook on its gradient is not called: backward passes go through gathered parameters.

Not covered: an alias of a parameter's numbers that was taken before it was sharded; parameters of a
class of the program's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from autotune.inside.seams.base import Patches, Seam

MEND = "Leave fsdp out of the search, or set strategy to ddp in best.yaml."


class ShardGuardSeam(Seam):
    """Watches over the parameters of a model from the moment that it is sharded.

    The seam of distribution calls it, in the thread that calls the model for the first time.
    """

    def __init__(self) -> None:
        self._patches = Patches()
        self._is_installed = False

    def check(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Insist that nothing hooks the gradients of parameters that are about to be replaced.

        Raises:
            RuntimeError: where something does.
        """
        for name, parameter in parameters.items():
            if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):  # noqa: SLF001
                raise RuntimeError(
                    f"the program has a hook on the gradient of {name}, which fsdp replaces by a "
                    f"sharded one. {MEND}"
                )

    def guard(self, before: Mapping[str, nn.Parameter], after: Mapping[str, nn.Parameter]) -> None:
        """Watch over the parameters of a model, by their names, and over the former ones."""
        if not self._is_installed:
            self._install()
        for name, old in before.items():
            if type(old) is nn.Parameter and after[name] is not old:
                old.__class__ = _Retired

    def remove(self) -> None:
        """Put PyTorch back as it was; former parameters go on to say that they are."""
        self._is_installed = False
        self._patches.undo()

    def _install(self) -> None:
        from torch.distributed.tensor import DTensor

        self._is_installed = True
        data: Any = torch.Tensor.data
        register: Any = torch.Tensor.register_hook

        def set_data(tensor: Any, value: Any) -> None:
            if not isinstance(value, DTensor) or not _is_same_memory(tensor, value):
                raise RuntimeError(
                    "the program assigns to .data of a tensor that fsdp has sharded, which would "
                    "change nothing. Write .data.copy_(...) instead, or leave fsdp out of the "
                    "search."
                )  # "p.data *= 0.5" has changed it in place and then assigns the same

        def register_hook(tensor: torch.Tensor, hook: Any) -> Any:
            if tensor.is_leaf:
                raise RuntimeError(
                    "the program hooks the gradient of a parameter that fsdp has sharded, which "
                    f"would never be called. {MEND}"
                )
            return register(tensor, hook)

        self._patches.replace(DTensor, "data", property(data.__get__, set_data))
        self._patches.replace(DTensor, "register_hook", register_hook)


def _is_same_memory(one: Any, other: Any) -> bool:
    """Tell whether two sharded tensors hold the same numbers in the same place."""
    own, its = one._local_tensor, other._local_tensor  # noqa: SLF001 - what .data does not reach
    return bool(own.data_ptr() == its.data_ptr() and own.shape == its.shape)


_TENSOR: Any = torch.Tensor
_LOOKS = (
    "is_leaf requires_grad retains_grad shape ndim dtype device layout is_sparse is_cuda nbytes "
    "itemsize"
)
_CALLS = "size dim numel nelement stride element_size is_complex is_floating_point __repr__"
_HARMLESS = {
    *(getattr(_TENSOR, name).__get__ for name in _LOOKS.split()),
    *(getattr(_TENSOR, name) for name in _CALLS.split()),
    *(torch.numel, torch.is_complex, torch.is_floating_point),
}


class _Retired(nn.Parameter):
    """A parameter in whose place a sharded one has come: what it holds is not trained."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _HARMLESS:
            raise RuntimeError(
                "the program goes on with a parameter that it took from its model before the "
                "first step, in whose place fsdp trains a sharded one. Take parameters from the "
                "model each time, or leave fsdp out of the search."
            )
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
            return func(*args, **(kwargs or {}))
