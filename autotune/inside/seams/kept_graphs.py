"""Finds autograd graphs that outlive their step, because the program keeps a loss with its graph.

``losses.append(loss)`` or ``total += loss`` keeps the graph of each step alive: memory grows.

Not covered: graphs of losses that only ``torch.autograd.grad`` sees, and nodes of compiled code.
"""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import suppress
from typing import Any
from weakref import ref

import torch

from autotune.inside.code.frames import own_place
from autotune.inside.seams.base import Patches, Seam, outermost
from autotune.measurement.examination import KeptGraphs


class _Token:
    """A hook of a graph's last node that does nothing: it lives as long as the node does."""

    def __call__(self, *_: Any) -> None:
        """Change no gradient."""


class KeptGraphsSeam(Seam):
    """Hangs a token on the graph of each loss, and counts the tokens that live on.

    The examiner installs it for some steps; tokens stay on graphs that live on. It runs on the
    thread that computes gradients.
    """

    def __init__(self) -> None:
        self._patches = Patches()
        self._tokens: list[list[ref[_Token]]] = []  # of each step
        self._new: list[ref[_Token]] = []
        self._places: Counter[str] = Counter()

    def install(self) -> None:
        """Wrap ``torch.autograd.backward``, which ``Tensor.backward()`` calls, too."""
        original = torch.autograd.backward
        seam = self

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            with suppress(AttributeError, RuntimeError):  # a node that takes no hook is not watched
                seam._mark([tensors] if isinstance(tensors, torch.Tensor) else list(tensors))
            original(tensors, *args, **kwargs)

        self._patches.replace(torch.autograd, "backward", outermost(backward, original))

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

    def _mark(self, losses: list[torch.Tensor]) -> None:
        for loss in losses:
            if loss.grad_fn is not None:
                token = _Token()
                loss.grad_fn.register_hook(token)
                self._new.append(ref(token))
        self._places[str(own_place() or "")] += 1
