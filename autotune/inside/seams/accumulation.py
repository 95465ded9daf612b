"""The seam of gradient accumulation: k micro-batches of the program's loop become one step.

In the program's loop every micro-batch runs as a whole step would. Until the group's last one,
``step`` of optimizers, schedulers and gradient scalers, and clipping, are held back, and
``zero_grad`` does nothing while gradients are being gathered. Each backward pass is weighed by its
share of the group's samples, so that the sum is the gradient of the mean over the whole group, also
in an epoch's last, smaller one.

Where the loss is known to sum over samples, nothing is weighed. Not covered: gradients that the
program clears or clips by its own code, and statistics over a batch, as BatchNorm has: they are
those of micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.amp import GradScaler
from torch.nn import utils
from torch.optim import Optimizer

from autotune.inside.seams.base import Patches, outermost


@dataclass(frozen=True)
class EpochShape:
    """What an epoch of the training loader consists of.

    Attributes:
        batches: None where that is unknown: all groups are whole then, also across epochs.
        size: Samples in a batch, None where batches differ: all weigh the same then.
        last: Samples in the last batch.
    """

    batches: int | None = None
    size: int | None = None
    last: int | None = None

    def samples(self, number: int) -> int:
        """Samples in a batch by its number, in proportion."""
        if self.size is None or self.last is None:
            return 1
        return self.last if number == self.batches else self.size


class AccumulationSeam:
    """Groups micro-batches of the training loader.

    Attributes:
        steps: Micro-batches in a group; 1 leaves everything as it is.
        share: Of the present micro-batch in its group's samples.
        sums: The loss sums over samples: so do gradients, without shares.
    """

    def __init__(self) -> None:
        self.steps = 1
        self.share = 1.0
        self.sums = False
        self._holds = False
        self._gathers = False
        self._hooked: set[type[Optimizer]] = set()
        self._patches = Patches()

    @property
    def holds(self) -> bool:
        """The present micro-batch is not the last of its group."""
        return self._holds

    @property
    def gathers(self) -> bool:
        """Gradients of the present group have been computed, and no step was made of them."""
        return self._gathers

    def begin(self, number: int, epoch: EpochShape) -> None:
        """A training loader hands out a micro-batch, the *number*-th of its epoch, from 1."""
        first = number - (number - 1) % self.steps
        last = first + self.steps - 1
        if epoch.batches is not None:
            last = min(last, epoch.batches)
        self._holds = number < last
        group = [epoch.samples(n) for n in range(first, last + 1)]
        self.share = 1.0 if self.sums else epoch.samples(number) / sum(group)

    def install(self) -> None:
        """Begin to act; optimizers are hooked when ``hook()`` learns of them."""
        self._weigh_backward()
        self._hold(utils, "clip_grad_value_", lambda *_a, **_k: None)
        self._hold_clipping_by_norm()
        for name in ("step", "update", "unscale_"):
            self._hold(GradScaler, name, lambda *_a, **_k: None)

    def hook(self, optimizer: Optimizer) -> None:
        """Hold back the steps of an optimizer's class; a scheduler wraps them only later."""
        cls = type(optimizer)
        if cls in self._hooked:
            return
        self._hooked.add(cls)
        original = cls.step
        seam = self

        def step(target: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if seam._holds:
                closure = kwargs.get("closure", args[0] if args else None)
                if closure is None:
                    return None
                with torch.enable_grad():  # the program computes loss and gradients in there
                    return closure()
            result = original(target, *args, **kwargs)
            seam._gathers = False
            return result

        vars(step)["hooked"] = True  # torch's own hooks run inside ours
        self._patches.replace(cls, "step", step)

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        self._patches.undo()
        self._hooked.clear()

    def _weigh_backward(self) -> None:
        original = torch.autograd.backward
        seam = self

        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            if seam.steps > 1:
                seam._gathers = True
                grad_tensors = _weighed(tensors, grad_tensors, seam.share)
            original(tensors, grad_tensors, *args, **kwargs)

        self._patches.replace(torch.autograd, "backward", outermost(backward, original))

    def _hold(self, owner: Any, name: str, instead: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        seam = self

        def call(*args: Any, **kwargs: Any) -> Any:
            return (instead if seam._holds else original)(*args, **kwargs)

        self._patches.replace(owner, name, call)

    def _hold_clipping_by_norm(self) -> None:
        """While steps are held back nothing is clipped, and the norm is still told."""
        original = utils.clip_grad_norm_
        seam = self

        def clip(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
            limit = math.inf if seam._holds else max_norm
            return original(parameters, limit, *args, **kwargs)

        self._patches.replace(utils, "clip_grad_norm_", clip)


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
