"""Raises an error where a program acts on sharded parameters in a way that would have no effect.

fsdp replaces a model's parameters by sharded ones, and three habits of programs would then fail
silently:

- The program holds the former parameters, which are no longer trained.
- It assigns to ``.data``. A DTensor keeps its values in an inner tensor, which the assignment does
  not reach. An optimizer that restores weights in this way, as SAM does, would go on with others.
- It hooks the gradient of a parameter. The hook is never called, because backward passes go through
  the gathered parameters.

Not covered: an alias of a parameter's values that was taken before sharding; parameters of a class
that the program defines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from autotune.inside.hubs.patches import Patches, Seam

MEND = "Leave fsdp out of the search, or take another value of devices in best.yaml."


class ShardGuardSeam(Seam):
    """Watches the parameters of a model from the moment that it is sharded.

    The distribution seam calls ``check()`` before and ``guard()`` after sharding a model, on the
    thread that calls the model for the first time.
    """

    def __init__(self) -> None:
        self._patches = Patches()
        self._is_installed = False

    def check(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Check that no hooks are registered on parameters that are about to be replaced.

        Args:
            parameters: The model's parameters by their names.

        Raises:
            RuntimeError: if a parameter has a hook on its gradient, which would be lost.
        """
        for name, parameter in parameters.items():
            if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):  # noqa: SLF001
                raise RuntimeError(
                    f"the program has a hook on the gradient of {name}, which fsdp replaces by a "
                    f"sharded one. {MEND}"
                )

    def guard(self, before: Mapping[str, nn.Parameter], after: Mapping[str, nn.Parameter]) -> None:
        """Watch sharded parameters, and make the former ones raise an error when they are used.

        Args:
            before: The model's parameters before sharding, by their names.
            after: Those of the sharded model, by the same names.
        """
        if not self._is_installed:
            self._install()
        for name, old in before.items():
            if type(old) is nn.Parameter and after[name] is not old:
                old.__class__ = _Retired

    def remove(self) -> None:
        """Put PyTorch back as it was; former parameters still raise an error when used."""
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
                )  # "p.data *= 0.5" is allowed: it changes the values in place, then assigns them

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
    """A parameter that a sharded one has replaced; its values are no longer trained.

    ``guard()`` makes former parameters instances of it. Looking at one still works (its shape,
    dtype or ``repr``); every other operation raises an error.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _HARMLESS:
            raise RuntimeError(
                "the program uses a parameter that it took from its model before the first step. "
                "fsdp has replaced it by a sharded one and trains only that. Take parameters from "
                "the model each time, or leave fsdp out of the search."
            )
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
            return func(*args, **(kwargs or {}))
