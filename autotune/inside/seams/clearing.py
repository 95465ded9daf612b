"""The seam at ``zero_grad``: gradients are dropped in the place of zeros, and kept in mind.

Zeros are a gradient, with which momentum and weight decay go on; a parameter without a gradient is
passed over. So a parameter whose gradient was dropped in the place of zeros, and for which a
backward pass computed none, gets its zeros when that pass is over, or before the step.

Not covered: code of the program that reads gradients between ``zero_grad`` and the backward pass.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from autotune.inside.code.own_code import place_of_program
from autotune.inside.seams.accumulation import AccumulationSeam
from autotune.inside.seams.base import Patches, Seam, outermost


class ClearingSeam(Seam):
    """Carries out the program's ``zero_grad``.

    Args:
        accumulation: Tells when gradients are being gathered.

    Attributes:
        own_to_none: What the program passes; False where it asks for zeros at least once, None
            where it calls no such method.
        by_model: Where the program first called that of a module; empty where it did not.
    """

    def __init__(self, accumulation: AccumulationSeam) -> None:
        self._accumulation = accumulation
        self._drops = False
        self._dropped: list[torch.Tensor] = []
        self._are_filled = False
        self._patches = Patches()
        self._hook: Any = None
        self.own_to_none: bool | None = None
        self.by_model = ""

    def drop_zeros(self, *, enabled: bool) -> None:
        """Drop gradients where the program asks for zeros; what it drops is dropped in any case."""
        self._drops = enabled

    def install(self, *, watches: bool) -> None:
        """Begin to act; *watches* tells that what the program asks for is to be known."""
        if watches or self._accumulation.steps > 1 or self._drops:
            self._follow(Optimizer)
            self._follow(nn.Module)
        if watches or self._drops:
            self._fill_after_backward()
            self._hook = register_optimizer_step_pre_hook(lambda *_: self._fill())

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._patches.undo()
        self._dropped.clear()

    def _follow(self, owner: type[Optimizer] | type[nn.Module]) -> None:
        original = owner.zero_grad
        seam = self

        def zero_grad(target: Any, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002
            if owner is nn.Module and not seam.by_model:
                seam.by_model = place_of_program(sys._getframe(1)) or "a library"  # noqa: SLF001
            seam.own_to_none = set_to_none and seam.own_to_none is not False
            if not seam._accumulation.clears(target, to_none=set_to_none):
                return
            if seam._drops and not set_to_none:
                seam._note(target)
                set_to_none = True
            original(target, set_to_none)

        self._patches.replace(owner, "zero_grad", zero_grad)

    def _note(self, target: Optimizer | nn.Module) -> None:
        """Keep in mind which parameters have a gradient, which is about to be dropped."""
        if self._are_filled:
            self._dropped, self._are_filled = [], False
        self._dropped += (p for p in _parameters(target) if p.grad is not None)

    def _fill_after_backward(self) -> None:
        original = torch.autograd.backward
        seam = self

        def backward(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            seam._fill()

        self._patches.replace(torch.autograd, "backward", outermost(backward, original))

    def _fill(self) -> None:
        """Give zeros to those that have no gradient by now."""
        if self._are_filled:
            return
        self._are_filled = True
        for parameter in self._dropped:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


def _parameters(target: Optimizer | nn.Module) -> Iterable[torch.Tensor]:
    if isinstance(target, nn.Module):
        return target.parameters()
    return (p for group in target.param_groups for p in group["params"])
