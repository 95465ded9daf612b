"""The program's hooks on gradients: they get true ones while a pass goes on that is scaled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import update_wrapper
from typing import Any, Protocol
from weakref import ref

import torch
from torch import nn

from autotune.inside.seams.base import Patches, Seam

MODULE_HOOKS = (
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
    "register_backward_hook",
)
HALVES = {torch.float16, torch.bfloat16}


class Scaling(Protocol):
    """Tells how gradients are scaled at this moment."""

    @property
    def scale_within(self) -> float:
        """By how much: 1 where no pass is under way."""

    def true_gradient(self, leaf: torch.Tensor) -> AbstractContextManager[None]:
        """Have the gradient of a leaf true for a moment."""


class GradientHooks(Seam):
    """Stands between gradients that are scaled and the hooks of the program.

    Gradients of 16 bits are handed on as fp32, in which dividing by the scale loses nothing.
    """

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self._retaining: list[ref[torch.Tensor]] = []
        self._patches = Patches()

    def install(self) -> None:
        """Begin to act on hooks that are registered from here on."""
        self._patch(torch.Tensor, "register_hook", self._call_tensors)
        self._patch(torch.Tensor, "register_post_accumulate_grad_hook", self._call_leafs)
        for name in MODULE_HOOKS:
            self._patch(nn.Module, name, self._call_modules)
        self._follow_retained()

    def retaining(self) -> list[torch.Tensor]:
        """Return the living tensors that keep their gradients though they are no leaves."""
        return [tensor for own in self._retaining if (tensor := own()) is not None]

    def _patch(self, owner: type, name: str, call: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        def register(target: Any, hook: Any, *args: Any, **kwargs: Any) -> Any:
            own = hook if _is_of_distributed(hook) else _Hook(call, hook)
            return original(target, own, *args, **kwargs)

        self._patches.replace(owner, name, register)

    def _follow_retained(self) -> None:
        original = torch.Tensor.retain_grad
        seam = self

        def retain_grad(tensor: torch.Tensor) -> None:
            original(tensor)
            if not tensor.is_leaf:
                seam._retaining = [*map(ref, seam.retaining()), ref(tensor)]

        self._patches.replace(torch.Tensor, "retain_grad", retain_grad)

    def _call_tensors(self, hook: Callable[..., Any], gradient: torch.Tensor) -> Any:
        if self._scaling.scale_within == 1.0:
            return hook(gradient)
        given = self._true(gradient)
        version = given._version  # noqa: SLF001
        result = hook(given)
        if result is None and given._version != version:  # noqa: SLF001
            result = given  # it was changed in place
        return self._scaled(result, gradient)

    def _call_leafs(self, hook: Callable[..., Any], leaf: torch.Tensor) -> Any:
        with self._scaling.true_gradient(leaf):
            return hook(leaf)

    def _call_modules(self, hook: Callable[..., Any], module: nn.Module, *gradients: Any) -> Any:
        if self._scaling.scale_within == 1.0:
            return hook(module, *gradients)
        result = hook(module, *(tuple(map(self._true, given)) for given in gradients))
        if result is None or isinstance(result, torch.Tensor):
            return self._scaled(result, gradients[0][0])
        return tuple(map(self._scaled, result, gradients[0]))

    def _true(self, gradient: Any) -> Any:
        if gradient is None:
            return None
        wide = gradient.float() if gradient.dtype in HALVES else gradient
        return wide / self._scaling.scale_within

    def _scaled(self, result: Any, gradient: Any) -> Any:
        if result is None:
            return None
        return (result * self._scaling.scale_within).to(gradient.dtype)


class _Hook:
    """A hook of the program's and how it is called; pickled with its module, it is the program's.

    Args:
        call: Calls the hook with true gradients.
        hook: The program's own.
    """

    def __init__(self, call: Callable[..., Any], hook: Callable[..., Any]) -> None:
        update_wrapper(self, hook)
        self._call, self._hook = call, hook

    def __call__(self, *args: Any) -> Any:
        return self._call(self._hook, *args)

    def __reduce__(self) -> tuple[Any, ...]:
        return copy.copy, (self._hook,)  # which leaves a function as it is

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hook:
        return _Hook(self._call, copy.deepcopy(self._hook, memo))


def _is_of_distributed(hook: Any) -> bool:
    """Tell whether torch itself registers it to reduce gradients, scaled as they are."""
    function = getattr(hook, "func", hook)
    return str(getattr(function, "__module__", "")).startswith("torch.distributed")
