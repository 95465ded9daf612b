"""The seam at ``zero_grad``: gradients are set to None where the program asks for zeros.

Setting them to None saves writing zeros and adding to them, but means something else to an
optimizer: it skips a parameter without a gradient, while a zero gradient still takes part in
momentum and weight decay. So the seam remembers which gradients it set to None. Those that the next
backward pass does not compute are filled with zeros when that pass ends, or before the step.

Not covered: code of the program that reads gradients between ``zero_grad`` and the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from autotune.inside.hubs.backward import BackwardListener, BackwardPass
from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.hubs.step import StepListener
from autotune.inside.seams.accumulation import AccumulationSeam


class ClearingSeam(Seam, BackwardListener, StepListener):
    """Carries out the ``zero_grad`` of optimizers and modules.

    ``Steering`` calls ``drop_zeros()`` on the main thread between two steps. The replaced functions
    run where the program calls them, on its training thread.

    Attributes:
        own_to_none: Whether the program's calls set gradients to None. False if it asked for zeros
            at least once; None if it has never called ``zero_grad``.
    """

    def __init__(self, accumulation: AccumulationSeam) -> None:
        self._accumulation = accumulation
        self._drops = False
        self._dropped: list[torch.Tensor] = []
        self._are_filled = False
        self._patches = Patches()
        self.own_to_none: bool | None = None

    def drop_zeros(self, *, enabled: bool) -> None:
        """Set gradients to None where the program asks for zeros, or stop doing so.

        It makes no difference to calls that ask for None themselves.
        """
        self._drops = enabled

    @property
    def is_needed(self) -> bool:
        """Whether gradients are set to None where the program asks for zeros."""
        return self._drops

    def install(self) -> None:
        """Replace ``zero_grad`` of optimizers and modules."""
        self._follow(Optimizer)
        self._follow(nn.Module)

    def remove(self) -> None:
        """Put PyTorch back as it was, and forget which gradients were set to None."""
        self._patches.undo()
        self._dropped.clear()

    def _follow(self, owner: type[Optimizer] | type[nn.Module]) -> None:
        original = owner.zero_grad
        seam = self

        def zero_grad(target: Any, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002
            seam.own_to_none = set_to_none and seam.own_to_none is not False
            if not seam._accumulation.clears(to_none=set_to_none):
                return
            if seam._drops and not set_to_none:
                seam._note(target)
                set_to_none = True
            original(target, set_to_none)

        self._patches.replace(owner, "zero_grad", zero_grad)

    def _note(self, target: Optimizer | nn.Module) -> None:
        if self._are_filled:  # a new round begins; several targets may be cleared in one
            self._dropped, self._are_filled = [], False
        self._dropped += (p for p in _parameters(target) if p.grad is not None)

    def after_backward(self, call: BackwardPass) -> None:  # noqa: ARG002
        """Give zeros to those that the pass did not reach."""
        if self._dropped:
            self._fill()

    def before_step(self, optimizer: Optimizer) -> None:  # noqa: ARG002
        """Give zeros also where no backward pass came before the step."""
        if self._dropped:
            self._fill()

    def _fill(self) -> None:
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
