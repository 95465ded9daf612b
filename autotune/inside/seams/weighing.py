"""The seam that weighs each rank's loss, so that the mean over ranks is the loss of one process.

Data-parallel training averages gradients over ranks. That is exact for a loss that is a mean over
equal numbers of samples. Two kinds of terms need a weight:

- A term that sums over samples is multiplied by the number of ranks.
- A term that is a mean over a rank's own tokens is weighted by that rank's share of all tokens.

Each term is weighted at its own node of autograd's graph, so a loss may contain several kinds.
During the first rounds the ranks exchange their counts in each backward pass. If the counts never
differ, they stop doing so. A penalty computed from parameters alone is the same on all ranks and
gets no weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import distributed
from torch.utils.hooks import RemovableHandle

from autotune.inside.code.loss_graph import Term, read
from autotune.inside.hubs.backward import BackwardListener, BackwardPass
from autotune.inside.ranks.group import Group

# Length of the vector of counts that ranks exchange. It is fixed because all_reduce needs the same
# shape on all ranks, also where their losses have different numbers of terms.
MAX_COUNTS = 16
SAME = 1e-9  # counts are equal up to rounding if their relative variance is below this


class WeighingSeam(BackwardListener):
    """Weights the loss terms of each outermost backward pass.

    The distribution seam makes it, and it joins where autotune distributes the program. It changes
    only what flows through the graph in that pass.

    Args:
        group: The processes that train together.

    Attributes:
        samples: Number of samples in the latest input of a model; None before the first call.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self.samples: int | None = None
        self._is_settled = False
        self._has_sums = False
        self._uneven: set[int] = set()  # indices of terms whose counts differ among ranks
        self._hooks: list[RemovableHandle] = []

    def before_backward(self, call: BackwardPass) -> None:
        """Weight the terms of the pass that begins."""
        if self._is_needed:
            self._hooks = self._weigh(call.losses, call.gradients)

    def backward_ended(self, call: BackwardPass) -> None:  # noqa: ARG002
        """Forget the weights: a retained graph is weighted anew in the next pass."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def settle(self) -> None:
        """Stop learning which terms need a weight.

        Called on all ranks in the same step, because ranks that have settled may no longer take
        part in the exchange of counts.
        """
        self._is_settled = True

    @property
    def _is_needed(self) -> bool:
        if self._is_settled and not (self._has_sums or self._uneven):
            return False
        return self._group.world_size > 1 and distributed.is_initialized()

    def _weigh(self, losses: Sequence[torch.Tensor], grads: Any) -> list[RemovableHandle]:
        if grads is None or isinstance(grads, torch.Tensor):
            grads = [grads] * len(losses)
        readings = [(x, read(x, self.samples, g)) for x, g in zip(losses, grads, strict=True)]
        terms = [term for _, reading in readings for term in reading.terms]
        shares = None if self._is_settled and not self._uneven else self._exchange(terms)
        return [
            term.node.register_prehook(partial(_weighed, weight))
            for number, term in enumerate(terms)
            if (weight := self._weight(number, term, shares)) is not None
        ]

    def _weight(self, number: int, term: Term, shares: torch.Tensor | None) -> Any:
        """Return the weight of a term on this rank; None if the plain mean over ranks is right."""
        is_sum = term.count is None or (term.is_sum_if_constant and number not in self._uneven)
        if is_sum:
            return float(self._group.world_size)
        return shares[number] if shares is not None and number in self._uneven else None

    def _exchange(self, terms: Sequence[Term]) -> torch.Tensor:
        """Return this rank's share of each term's count, multiplied by the number of ranks.

        All ranks call it together. Until ``settle()`` it also notes which counts differ.
        """
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
    """Return the counts as a vector of MAX_COUNTS entries; missing ones are 0."""
    devices = {c.device for c in counts if isinstance(c, torch.Tensor)}
    vector = torch.zeros(MAX_COUNTS, dtype=torch.float64, device=next(iter(devices), None))
    for number, count in enumerate(counts[:MAX_COUNTS]):
        if count is not None:
            vector[number] = count.detach().sum() if isinstance(count, torch.Tensor) else count
    return vector


def _weighed(weight: Any, grads: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return gradients times a weight.

    A rank whose batch holds no tokens has a mean of 0/0, hence NaN gradients. Its weight is 0, and
    its gradients become exactly 0, where ``NaN * 0`` would stay NaN.
    """
    if not isinstance(weight, torch.Tensor):
        return tuple(None if grad is None else grad * weight for grad in grads)
    return tuple(
        None if g is None else torch.where(weight > 0, g * weight.to(g.dtype), torch.zeros_like(g))
        for g in grads
    )
