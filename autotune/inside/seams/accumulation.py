"""The seam of gradient accumulation: k micro-batches of the program's loop become one step.

In the program's loop every micro-batch runs as a whole step would. Until the group's last one,
``step`` of optimizers, schedulers and gradient scalers, clipping, and averages of weights
(``AveragedModel``) are held back, and ``zero_grad`` does nothing while gradients are being
gathered. Each backward pass is weighed by its share of the group's samples, so that the sum is the
gradient of the mean over the whole group, also in an epoch's last, smaller one.

Covered besides: ``zero_grad`` between backward and step, or no step at all, by which a program
leaves out a batch whose loss is not finite, leaves out its group; a loop that is left within a
group drops what was gathered; data without a length is grouped across epochs.

Where the loss is known to sum over samples, nothing is weighed. Not covered: gradients that the
program clears or clips by its own code, and statistics over a batch, as BatchNorm has: they are
those of micro-batches.
"""

from __future__ import annotations

import math
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn import utils
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from autotune.inside.micro_batches import EpochShape, Groups
from autotune.inside.seams.base import Patches, Seam, outermost


class AccumulationSeam(Seam):
    """Groups micro-batches of the training loader.

    Attributes:
        sums: The loss sums over samples: so do gradients, without shares.
    """

    def __init__(self) -> None:
        self.sums = False
        self._groups = Groups(self._drop)
        self._clears_to_none = True
        self._optimizers: WeakSet[Optimizer] = WeakSet()
        self._hooked: set[type[Optimizer]] = set()
        self._patches = Patches()

    @property
    def steps(self) -> int:
        """Micro-batches in a group; 1 leaves everything as it is."""
        return self._groups.steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._groups.regroup(steps)

    @property
    def holds(self) -> bool:
        """The present micro-batch makes no step: it is not the last of its group."""
        if self.steps == 1:
            return False
        if torch.is_grad_enabled():
            self._groups.take()
        return not self._groups.is_last or self._groups.is_left_out

    def begin(self, number: int, epoch: EpochShape, iteration: object = None) -> None:
        """A training loader hands out a micro-batch, the *number*-th of its epoch, from 1."""
        self._groups.hand_out(number, epoch, iteration)

    def end(self, iteration: object) -> None:
        """The program asks an iteration of a training loader for nothing more."""
        self._groups.end(iteration)

    def clears(self, target: Optimizer | nn.Module, *, to_none: bool) -> bool:
        """Tell whether the program's ``zero_grad()`` is to be carried out.

        Between a backward pass and a step it throws gradients away, which may hold NaN.
        """
        self._clears_to_none = to_none
        if self.steps == 1:
            return True
        self._groups.take()
        if self._groups.has_gradients:
            if self._trains(target):
                self._groups.leave_out()
            return True
        return self._groups.is_left_out or not self._groups.gathers

    def install(self) -> None:
        """Begin to act; optimizers are hooked when ``hook()`` learns of them."""
        self._weigh_backward()
        for owner in (utils, clip_grad):  # programs take them from either
            self._hold(owner, "clip_grad_value_")
            self._hold_clipping_by_norm(owner)
        self._hold(utils, "clip_grads_with_norm_")
        for name in ("update", "unscale_"):
            self._hold(GradScaler, name)
        self._hold(AveragedModel, "update_parameters")
        self._hold_scaled_steps()

    def hook(self, optimizer: Optimizer) -> None:
        """Hold back the steps of an optimizer's class; a scheduler wraps them only later."""
        self._optimizers.add(optimizer)
        cls = type(optimizer)
        if cls in self._hooked:
            return
        self._hooked.add(cls)
        original = cls.step
        seam = self

        def step(target: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if seam.steps == 1:
                return original(target, *args, **kwargs)
            if not seam._holds_step(target):
                result = original(target, *args, **kwargs)
                seam._groups.stepped(target, is_real=True)
                return result
            closure = kwargs.get("closure", args[0] if args else None)
            result = None
            if closure is not None:
                with torch.enable_grad():  # the program computes loss and gradients in there
                    result = closure()
            seam._groups.stepped(target, is_real=False)
            return result

        vars(step)["hooked"] = True  # torch's own hooks run inside ours
        self._patches.replace(cls, "step", step)

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        self._patches.undo()
        self._hooked.clear()

    def _holds_step(self, optimizer: Optimizer) -> bool:
        """Tell whether this step waits; a second one for a micro-batch is made of other data."""
        is_held = self.holds
        if is_held and self._groups.steps_again(optimizer):
            self._groups.release()
            is_held = False
        return is_held

    def _trains(self, target: Optimizer | nn.Module) -> bool:
        """Tell whether a step is to be made of the gradients that *target* clears."""
        if isinstance(target, Optimizer):
            return True
        cleared = {id(p) for p in target.parameters()}
        return any(id(p) in cleared for p in self._trained())

    def _trained(self) -> list[torch.Tensor]:
        return [p for o in self._optimizers for group in o.param_groups for p in group["params"]]

    def _drop(self) -> None:
        """Clear gradients as the program does."""
        for parameter in self._trained():
            if parameter.grad is None:
                continue
            if self._clears_to_none:
                parameter.grad = None
            else:
                parameter.grad.detach_().zero_()

    def _weigh_backward(self) -> None:
        original = torch.autograd.backward
        seam = self

        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            if seam.steps > 1:
                seam._groups.take()
                seam._groups.gradients_come()
                if not seam.sums:
                    grad_tensors = _weighed(tensors, grad_tensors, seam._groups.share)
            original(tensors, grad_tensors, *args, **kwargs)

        self._patches.replace(torch.autograd, "backward", outermost(backward, original))

    def _hold(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)
        seam = self

        def call(*args: Any, **kwargs: Any) -> Any:
            return None if seam.holds else original(*args, **kwargs)

        self._patches.replace(owner, name, call)

    def _hold_scaled_steps(self) -> None:
        """One that a scaler leaves out, for gradients that are not finite, ends its group too."""
        original = GradScaler.step
        seam = self

        def step(scaler: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if seam.steps == 1:
                return original(scaler, optimizer, *args, **kwargs)
            is_held = seam._holds_step(optimizer)
            result = None if is_held else original(scaler, optimizer, *args, **kwargs)
            seam._groups.stepped(optimizer, is_real=not is_held)
            return result

        self._patches.replace(GradScaler, "step", step)

    def _hold_clipping_by_norm(self, owner: Any) -> None:
        """While steps are held back nothing is clipped, and the norm is still told."""
        original = owner.clip_grad_norm_
        seam = self

        def clip(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
            limit = math.inf if seam.holds else max_norm
            return original(parameters, limit, *args, **kwargs)

        self._patches.replace(owner, "clip_grad_norm_", clip)


def _weighed(tensors: Any, grads: Any, share: float) -> Any:
    """The gradients with which a backward pass begins, times its share."""
    if isinstance(tensors, torch.Tensor):
        tensors = (tensors,)
    if grads is None or isinstance(grads, torch.Tensor):
        grads = (grads,) * len(tensors)
    return tuple(
        torch.full_like(tensor, share) if grad is None else grad * share
        for tensor, grad in zip(tensors, grads, strict=True)
    )
