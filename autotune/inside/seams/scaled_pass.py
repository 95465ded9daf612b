"""A backward pass that begins from a scale, and leaves gradients as if it had begun from 1.

The scale is a power of two: to multiply by it and to divide by it again changes no digit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from autotune.inside.ranks.dtensor import is_sharded


class ScaledPass:
    """One outermost backward pass, with those that run within it.

    Gradients that lie there from earlier passes are brought up before it adds to them, and all of
    them are brought back when it ends.

    Args:
        scale: By which the gradients are multiplied with which it begins.
        groups: Parameters of optimizers. One group's gradients overflow together.
        keeps_graph: Gradients are functions that the program differentiates again.
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
        """Bring up the gradients of these, to which the pass may add."""
        new = {id(leaf): leaf for leaf in leaves if id(leaf) not in self._leaves}
        self._leaves |= new
        if self._aside is None:
            _multiply([p.grad for p in new.values() if p.grad is not None], self.scale)
            return
        for key, leaf in new.items():
            if leaf.grad is not None:
                self._aside[key], leaf.grad = leaf.grad, None

    def bring_back(self, leaf: torch.Tensor) -> bool:
        """Make one gradient true before the pass has ended; return whether it overflowed."""
        self.take_in([leaf])
        return leaf.grad is not None and _unscale([leaf.grad], self.scale)

    def take_up(self, leaf: torch.Tensor) -> None:
        """Let the pass go on with a gradient that was brought back."""
        if leaf.grad is not None:
            _multiply([leaf.grad], self.scale)

    def end(self) -> list[torch.Tensor]:
        """Make all gradients true; return the leaves whose gradients overflowed."""
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
        """Bring gradients back in the eyes of autograd too."""
        with torch.enable_grad():
            for key, leaf in self._leaves.items():
                parts = [] if leaf.grad is None else [leaf.grad / self.scale]
                parts += [aside[key]] if key in aside else []
                leaf.grad = sum(parts[1:], parts[0]) if parts else None


def clear(leaves: Iterable[torch.Tensor]) -> None:
    """Set gradients to 0 in place."""
    with torch.no_grad():
        for leaf in leaves:
            if leaf.grad is not None:
                _numbers(leaf.grad).zero_()


def begun(tensors: Sequence[torch.Tensor], grads: Any, scale: float) -> tuple[Any, ...]:
    """Return the gradients with which a backward pass begins, times the scale."""
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
    """Return the leaves that a backward pass from these tensors reaches."""
    leaves = [t for t in tensors if t.is_leaf]
    todo: list[Any] = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen = set(todo)
    while todo:
        node = todo.pop()
        if not node.next_functions and hasattr(node, "variable"):  # where gradients are added up
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
    """Divide in place as a GradScaler does; tell whether any number is infinite or none."""
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
    """Put together what one kernel takes."""
    piles: dict[object, list[torch.Tensor]] = {}
    for gradient in gradients:
        numbers = _numbers(gradient)
        kind = numbers.device, numbers.dtype, is_sharded(numbers)
        piles.setdefault(kind, []).append(numbers)
    return piles.values()


def _numbers(gradient: torch.Tensor) -> torch.Tensor:
    """Return the real numbers of a gradient, to be changed in place."""
    numbers = gradient.detach()
    if numbers.is_sparse:
        numbers = numbers._values()  # noqa: SLF001
    return torch.view_as_real(numbers) if numbers.is_complex() else numbers
