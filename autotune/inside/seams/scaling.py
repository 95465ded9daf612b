"""The seam of loss scaling: fp16 gradients are scaled up before they vanish, and down at the step.

The scale is torch's own ``GradScaler``, kept here because the program has none: every backward pass
starts from the scale, gradients are brought back before the program clips them or the optimizer
uses them, and a step whose gradients overflowed is left out and lowers the scale.

Not covered: gradients that the program reads between backward and step by its own code, which see
them scaled, and optimizers that compute the loss again within their step (LBFGS).
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import torch
from torch.amp import GradScaler
from torch.nn import utils
from torch.optim import Optimizer

from autotune.inside.seams.base import Patches, outermost

CLIPPING = ("clip_grad_norm_", "clip_grad_value_")


class ScalingSeam:
    """Scales the gradients of a program that has no GradScaler of its own."""

    def __init__(self) -> None:
        self._device = "cpu"
        self._scaler: GradScaler | None = None
        self._optimizers: WeakSet[Optimizer] = WeakSet()
        self._to_unscale: WeakSet[Optimizer] = WeakSet()
        self._has_stepped = False
        self._is_stepping = False
        self._hooked: set[type[Optimizer]] = set()
        self._patches = Patches()

    @property
    def is_needed(self) -> bool:
        """Scaling was asked for."""
        return self._scaler is not None

    @property
    def scaler(self) -> GradScaler | None:
        """The seam's own, None without scaling."""
        return self._scaler

    @property
    def scale(self) -> float:
        """The present scale, 1 without scaling."""
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())

    def set_enabled(self, *, enabled: bool, device: str) -> None:
        """Scale from the next backward pass on, or stop doing so; between two steps."""
        if enabled != self.is_needed:
            self._scaler = GradScaler(device) if enabled else None
            self._to_unscale.clear()
            self._has_stepped = False

    def install(self) -> None:
        """Begin to act; optimizers are hooked when ``hook()`` learns of them."""
        self._scale_backward()
        for name in CLIPPING:
            self._unscale_before(name)

    def hook(self, optimizer: Optimizer) -> None:
        """Act at the steps of an optimizer."""
        self._optimizers.add(optimizer)
        cls = type(optimizer)
        if cls in self._hooked:
            return
        self._hooked.add(cls)
        original = cls.step
        seam = self

        def step(target: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if seam._scaler is None or seam._is_stepping:
                return original(target, *args, **kwargs)
            return seam._step(seam._scaler, target, *args, **kwargs)

        vars(step)["hooked"] = True  # torch's own hooks run inside ours
        self._patches.replace(cls, "step", step)

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        self._patches.undo()
        self._hooked.clear()

    def _step(self, scaler: GradScaler, optimizer: Optimizer, closure: Any = None) -> Any:
        """Let the scaler decide whether the optimizer makes its step."""
        result = None
        if closure is not None:
            with torch.enable_grad():  # the program computes loss and gradients in there
                result = closure()
        self._is_stepping = True
        try:
            if any(p.grad is not None for g in optimizer.param_groups for p in g["params"]):
                scaler.step(optimizer)
        finally:
            self._is_stepping = False
        self._to_unscale.discard(optimizer)
        self._has_stepped = True
        return result

    def _scale_backward(self) -> None:
        original = torch.autograd.backward
        seam = self

        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            if seam._scaler is not None:
                grad_tensors = seam._scaled(seam._scaler, tensors, grad_tensors)
            original(tensors, grad_tensors, *args, **kwargs)

        self._patches.replace(torch.autograd, "backward", outermost(backward, original))

    def _scaled(self, scaler: GradScaler, tensors: Any, grads: Any) -> Any:
        """The gradients with which a backward pass begins, times the scale.

        The scale may change here only: gradients in flight were made with the old one.
        """
        if self._has_stepped:
            self._has_stepped = False
            scaler.update()
        tensors = (tensors,) if isinstance(tensors, torch.Tensor) else tensors
        if grads is None or isinstance(grads, torch.Tensor):
            grads = (grads,) * len(tensors)
        self._to_unscale.update(self._optimizers)
        return tuple(
            scaler.scale(torch.ones_like(tensor) if grad is None else grad)
            for tensor, grad in zip(tensors, grads, strict=True)
        )

    def _unscale_before(self, name: str) -> None:
        original = getattr(utils, name)
        seam = self

        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else [*parameters]
            if seam._scaler is not None:
                seam._unscale(seam._scaler, parameters)
            return original(parameters, *args, **kwargs)

        self._patches.replace(utils, name, clip)

    def _unscale(self, scaler: GradScaler, parameters: list[torch.Tensor]) -> None:
        """Bring back the gradients of the optimizers to which these parameters belong."""
        wanted = {id(p) for p in parameters}
        for optimizer in list(self._to_unscale):
            own = (p for g in optimizer.param_groups for p in g["params"])
            if any(id(p) in wanted and p.grad is not None for p in own):
                scaler.unscale_(optimizer)
                self._to_unscale.discard(optimizer)
