"""A backward pass with a scaled loss that leaves unscaled gradients behind.

The scale is a power of two, so multiplying by it and dividing again does not round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from autotune.inside.ranks.dtensor import is_sharded


class ScaledPass:
    """One outermost backward pass, together with the passes that run within it.

    Gradients left from earlier passes are multiplied by the scale before the pass adds to them, and
    all gradients are divided by it when the pass ends. ``ScalingSeam`` makes one for each pass, and
    calls it on the thread that computes gradients; gradient hooks call it in between.

    Args:
        scale: The factor for the gradients with which the pass begins.
        groups: The parameters of each optimizer. If one gradient of a group overflows, the whole
            group counts as overflowed.
        keeps_graph: Whether gradients are themselves differentiated (``create_graph=True``). They
            must then not be changed in place.
    """

    def __init__(
        self, scale: float, groups: Sequence[list[torch.Tensor]], *, keeps_graph: bool = False
    ) -> None:
        self.scale = scale
        self._groups = groups
        self._leaves: dict[int, torch.Tensor] = {}
        self._aside: dict[int, torch.Tensor] | None = {} if keeps_graph else None
        for group in groups:
            self.take_in(group)

    def take_in(self, leaves: Iterable[torch.Tensor]) -> None:
        """Scale the present gradients of leaves to which the pass may add; each leaf only once.

        With ``keeps_graph`` they are set aside instead and added when the pass ends.
        """
        new = {id(leaf): leaf for leaf in leaves if id(leaf) not in self._leaves}
        self._leaves |= new
        if self._aside is None:
            _multiply([p.grad for p in new.values() if p.grad is not None], self.scale)
            return
        for key, leaf in new.items():
            if leaf.grad is not None:
                self._aside[key], leaf.grad = leaf.grad, None

    def bring_back(self, leaf: torch.Tensor) -> bool:
        """Unscale one gradient before the pass has ended, so that a hook reads its true value.

        Returns:
            Whether it overflowed.
        """
        self.take_in([leaf])
        return leaf.grad is not None and _unscale([leaf.grad], self.scale)

    def take_up(self, leaf: torch.Tensor) -> None:
        """Scale a gradient again after ``bring_back()``, so that the pass can go on with it."""
        if leaf.grad is not None:
            _multiply([leaf.grad], self.scale)

    def end(self) -> list[torch.Tensor]:
        """Unscale all gradients.

        Returns:
            The leaves of all groups in which a gradient overflowed.
        """
        scale = self.scale if self._aside is None else 1.0
        if self._aside is not None:
            self._divide(self._aside)
        overflowed: list[torch.Tensor] = []
        seen: set[int] = set()
        for group in (*self._groups, list(self._leaves.values())):
            own = [p for p in group if id(p) not in seen and p.grad is not None]
            seen.update(map(id, own))
            gradients = {id(p.grad): p.grad for p in own if p.grad is not None}
            if _unscale(gradients.values(), scale):
                overflowed += own
        return overflowed

    def _divide(self, aside: dict[int, torch.Tensor]) -> None:
        """Unscale gradients by operations that autograd records, and add those set aside."""
        with torch.enable_grad():
            for key, leaf in self._leaves.items():
                parts = [] if leaf.grad is None else [leaf.grad / self.scale]
                parts += [aside[key]] if key in aside else []
                leaf.grad = sum(parts[1:], parts[0]) if parts else None


def clear(leaves: Iterable[torch.Tensor]) -> None:
    """Set the gradients of leaves to 0 in place; leaves without a gradient are skipped."""
    with torch.no_grad():
        for leaf in leaves:
            if leaf.grad is not None:
                _numbers(leaf.grad).zero_()


def begun(tensors: Sequence[torch.Tensor], grads: Any, scale: float) -> tuple[Any, ...]:
    """Return the gradients with which a backward pass begins, multiplied by the scale.

    Args:
        tensors: The tensors that the program differentiates.
        grads: The program's ``grad_tensors``; None stands for 1.
        scale: The factor.

    Returns:
        One gradient for each tensor. None for a tensor that needs one and has none, so that torch
        raises its usual error.
    """
    if grads is None or isinstance(grads, torch.Tensor):
        grads = (grads,) * len(tensors)
    return tuple(_first(tensor, grad, scale) for tensor, grad in zip(tensors, grads, strict=True))


def _first(tensor: torch.Tensor, grad: torch.Tensor | None, scale: float) -> torch.Tensor | None:
    if grad is not None:
        return grad * scale
    if tensor.numel() != 1:
        return None  # torch says what is wrong with that
    return torch.full_like(tensor, scale, requires_grad=False)


def leaves_of(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return the leaves that a backward pass from these tensors reaches, by walking the graph."""
    leaves = [t for t in tensors if t.is_leaf]
    todo: list[Any] = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen = set(todo)
    while todo:
        node = todo.pop()
        if not node.next_functions and hasattr(node, "variable"):  # an AccumulateGrad node
            leaves.append(node.variable)
        for before, _ in node.next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                todo.append(before)
    return leaves


def _multiply(gradients: list[torch.Tensor], scale: float) -> None:
    with torch.no_grad():
        unique = {id(gradient): gradient for gradient in gradients}
        for pile in _piles(unique.values()):
            torch._foreach_mul_(pile, scale)


def _unscale(gradients: Iterable[torch.Tensor], scale: float) -> bool:
    """Divide gradients by the scale in place, with the kernel that GradScaler uses.

    Returns:
        Whether any value is infinite or NaN. Reading this syncs the device.
    """
    found = []
    with torch.no_grad():
        for pile in _piles(gradients):
            device = pile[0].device
            is_found = torch.zeros((), device=device)
            inverse = torch.full((), 1.0 / scale, device=device)
            torch._amp_foreach_non_finite_check_and_unscale_(pile, is_found, inverse)
            found.append(is_found)
    return any(bool(one) for one in found)


def _piles(gradients: Iterable[torch.Tensor]) -> Iterable[list[torch.Tensor]]:
    """Group gradients by device, dtype and kind, because one kernel call takes only equal ones."""
    piles: dict[object, list[torch.Tensor]] = {}
    for gradient in gradients:
        numbers = _numbers(gradient)
        kind = numbers.device, numbers.dtype, is_sharded(numbers)
        piles.setdefault(kind, []).append(numbers)
    return piles.values()


def _numbers(gradient: torch.Tensor) -> torch.Tensor:
    """Return a real, dense view of a gradient's values, through which they are changed in place."""
    numbers = gradient.detach()
    if numbers.is_sparse:
        numbers = numbers._values()  # noqa: SLF001
    return torch.view_as_real(numbers) if numbers.is_complex() else numbers
