"""The seam that weighs each rank's loss, so that the ranks' mean is the loss of one process.

Gradients are averaged over ranks. A term of the loss that sums over samples counts once for each
rank then; one that is a mean over a rank's own tokens counts by that rank's share of all tokens.
Each is weighed at its own node of autograd's graph, so terms of several kinds make one loss. During
the first rounds ranks exchange their counts in each backward pass; where these never differ, no
more. A penalty that parameters alone make is the same on all ranks and stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import distributed
from torch.utils.hooks import RemovableHandle

from autotune.inside.code.loss_graph import Reading, Term, read
from autotune.inside.ranks.group import Group
from autotune.inside.seams.base import Patches, Seam, outermost

MAX_COUNTS = 16  # that ranks exchange together: all send as many, whatever their losses are
SAME = 1e-9


class WeighingSeam(Seam):
    """Weighs outermost backward passes.

    Args:
        group: The processes that train together.

    Attributes:
        sums: The loss is known to sum over samples, also where its graph does not tell.
        samples: In the latest input of a model, None before the first.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self.sums = False
        self.samples: int | None = None
        self._is_settled = False
        self._has_sums = False
        self._uneven: set[int] = set()  # terms by their numbers, whose counts differ among ranks
        self._patches = Patches()

    def install(self) -> None:
        """Begin to weigh."""
        original = torch.autograd.backward
        seam = self

        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            hooks = seam._weigh(tensors, grad_tensors) if seam._is_needed else []
            try:
                original(tensors, grad_tensors, *args, **kwargs)
            finally:  # what is kept for another pass is weighed again
                for hook in hooks:
                    hook.remove()

        self._patches.replace(torch.autograd, "backward", outermost(backward, original))

    def settle(self) -> None:
        """What the losses are is known from now on, on all ranks alike."""
        self._is_settled = True

    @property
    def _is_needed(self) -> bool:
        if self._is_settled and not (self.sums or self._has_sums or self._uneven):
            return False
        return self._group.world_size > 1 and distributed.is_initialized()

    def _weigh(self, tensors: Any, grads: Any) -> list[RemovableHandle]:
        losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        if grads is None or isinstance(grads, torch.Tensor):
            grads = [grads] * len(losses)
        readings = [(x, read(x, self.samples, g)) for x, g in zip(losses, grads, strict=True)]
        terms = [term for _, reading in readings for term in reading.terms]
        shares = None if self._is_settled and not self._uneven else self._exchange(terms)
        hooks = [
            term.node.register_prehook(partial(_weighed, weight))
            for number, term in enumerate(terms)
            if (weight := self._weight(number, term, shares)) is not None
        ]
        return hooks + self._weigh_unknown(readings)

    def _weight(self, number: int, term: Term, shares: torch.Tensor | None) -> Any:
        """Return what a term counts on this rank; None for as much as the mean of the ranks'."""
        is_sum = term.count is None or (term.is_sum_if_constant and number not in self._uneven)
        if is_sum:
            return float(self._group.world_size)
        return shares[number] if shares is not None and number in self._uneven else None

    def _weigh_unknown(
        self, readings: Sequence[tuple[torch.Tensor, Reading]]
    ) -> list[RemovableHandle]:
        """Weigh whole losses that are known to be sums and whose graph tells no terms."""
        if not self.sums:
            return []
        weight = float(self._group.world_size)
        return [
            loss.grad_fn.register_prehook(partial(_weighed, weight))
            for loss, reading in readings
            if loss.grad_fn is not None and not reading.terms
        ]

    def _exchange(self, terms: Sequence[Term]) -> torch.Tensor:
        """Return this rank's shares of the counts, times the ranks."""
        size = self._group.world_size
        counts = _vector([term.count for term in terms])
        sums = torch.stack([counts, counts * counts])
        distributed.all_reduce(sums)
        total, squares = sums
        if not self._is_settled:
            is_uneven = size * squares - total * total > SAME * total * total
            self._uneven |= {n for n, uneven in enumerate(is_uneven.tolist()) if uneven}
            self._has_sums |= any(term.count is None or term.is_sum_if_constant for term in terms)
        return torch.where(total > 0, size * counts / total, 0.0)


def _vector(counts: Sequence[float | torch.Tensor | None]) -> torch.Tensor:
    """Return counts as a vector of the length that all ranks send."""
    devices = {c.device for c in counts if isinstance(c, torch.Tensor)}
    vector = torch.zeros(MAX_COUNTS, dtype=torch.float64, device=next(iter(devices), None))
    for number, count in enumerate(counts[:MAX_COUNTS]):
        if count is not None:
            vector[number] = count.detach().sum() if isinstance(count, torch.Tensor) else count
    return vector


def _weighed(weight: Any, grads: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return gradients times a weight; of no tokens at all there is none, and no NaN."""
    if not isinstance(weight, torch.Tensor):
        return tuple(None if grad is None else grad * weight for grad in grads)
    return tuple(
        None if g is None else torch.where(weight > 0, g * weight.to(g.dtype), torch.zeros_like(g))
        for g in grads
    )
