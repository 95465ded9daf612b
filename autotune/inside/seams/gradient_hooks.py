"""The program's hooks on gradients: they get true gradients during a backward pass that is scaled.

Loss scaling keeps gradients multiplied within a backward pass. A program that clips, logs or
changes them in a hook must not notice, so hooks are called with unscaled gradients, and what they
return is scaled again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import update_wrapper
from typing import Any, Protocol
from weakref import ref

import torch
from torch import nn

from autotune.inside.hubs.patches import Patches, Seam

MODULE_HOOKS = (
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
    "register_backward_hook",
)
HALVES = {torch.float16, torch.bfloat16}


class Scaling(Protocol):
    """What the hooks need to know of loss scaling; ``ScalingSeam`` implements it."""

    @property
    def scale_within(self) -> float:
        """The factor by which gradients are scaled now; 1 outside of backward passes."""

    def true_gradient(self, leaf: torch.Tensor) -> AbstractContextManager[None]:
        """Return a context within which the gradient of *leaf* is unscaled."""


class GradientHooks(Seam):
    """Calls the program's hooks with unscaled gradients.

    The scaling seam owns it and installs it together with itself. Autograd calls the hooks, on the
    thread that runs that part of the backward pass. 16-bit gradients are passed on as fp32, because
    small ones would vanish in 16 bits when they are divided by the scale.
    """

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self._retaining: list[ref[torch.Tensor]] = []
        self._patches = Patches()

    def install(self) -> None:
        """Wrap hooks that are registered from here on; earlier ones see scaled gradients."""
        self._patch(torch.Tensor, "register_hook", self._call_tensors)
        self._patch(torch.Tensor, "register_post_accumulate_grad_hook", self._call_leafs)
        for name in MODULE_HOOKS:
            self._patch(nn.Module, name, self._call_modules)
        self._follow_retained()

    def retaining(self) -> list[torch.Tensor]:
        """Return the living tensors that keep their gradient by ``retain_grad()``, without leaves.

        Their gradients must be unscaled at the end of a pass too.
        """
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
            result = given  # the hook has changed it in place
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
    """One hook of the program, wrapped so that it gets unscaled gradients.

    Autograd calls it in the place of the hook. Hooks are pickled and copied with their module:
    pickled, it becomes the program's own hook again, so that a checkpoint does not depend on
    autotune; copied, it stays wrapped.

    Args:
        call: Calls the hook with unscaled gradients.
        hook: The program's hook.
    """

    def __init__(self, call: Callable[..., Any], hook: Callable[..., Any]) -> None:
        update_wrapper(self, hook)
        self._call, self._hook = call, hook

    def __call__(self, *args: Any) -> Any:
        return self._call(self._hook, *args)

    def __reduce__(self) -> tuple[Any, ...]:
        return copy.copy, (self._hook,)  # copying a function returns the same function

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hook:
        return _Hook(self._call, copy.deepcopy(self._hook, memo))


def _is_of_distributed(hook: Any) -> bool:
    """Tell whether the hook belongs to torch.distributed.

    DDP and FSDP reduce gradients in their hooks. They must reduce them as they are, scaled.
    """
    function = getattr(hook, "func", hook)
    return str(getattr(function, "__module__", "")).startswith("torch.distributed")
