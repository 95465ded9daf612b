"""Finds autograd graphs that outlive their step, because the program keeps a loss with its graph.

``losses.append(loss)`` or ``total += loss`` keeps the graph of each step alive: memory grows.

Not covered: graphs of losses that only ``torch.autograd.grad`` sees, and nodes of compiled code.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from weakref import ref

import torch

from autotune.inside.code.frames import own_place
from autotune.inside.hubs.backward import BackwardListener, BackwardPass
from autotune.measurement.examination import KeptGraphs


class _Token:
    """A hook of a graph's last node that does nothing: it lives as long as the node does."""

    def __call__(self, *_: Any) -> None:
        """Change no gradient."""


class GraphWatch(BackwardListener):
    """Hangs a token on the graph of each loss, and counts the tokens that live on.

    The examiner has it join for some steps. Tokens stay on graphs that live on.
    """

    def __init__(self) -> None:
        self._tokens: list[list[ref[_Token]]] = []  # of each step
        self._new: list[ref[_Token]] = []
        self._places: Counter[str] = Counter()

    def before_backward(self, call: BackwardPass) -> None:
        """Hang a token on the graph of each loss."""
        with suppress(AttributeError, RuntimeError):  # a node that takes no hook is not watched
            self._mark(call.losses)

    def step(self) -> None:
        """Note that a step ends."""
        if self._new:
            self._tokens.append(self._new)
            self._new = []

    def found(self) -> KeptGraphs | None:
        """Return how many steps' graphs are alive now; None if no backward pass was seen."""
        if not self._tokens:
            return None
        gc.collect()  # graphs in reference cycles are not kept by the program
        kept = sum(any(token() is not None for token in tokens) for tokens in self._tokens)
        return KeptGraphs(kept, len(self._tokens), self._places.most_common(1)[0][0])

    def _mark(self, losses: Sequence[torch.Tensor]) -> None:
        for loss in losses:
            if loss.grad_fn is not None:
                token = _Token()
                loss.grad_fn.register_hook(token)
                self._new.append(ref(token))
        self._places[str(own_place() or "")] += 1
