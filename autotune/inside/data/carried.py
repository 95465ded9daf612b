"""Detect carried state: tensors that a model returns for one batch and gets as input with the next.

A recurrent model trained by truncated backpropagation does so. Its state has one row per sample of
the batch, so such a model cannot be trained with another batch size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from autotune.inside.code.autograd import is_transforming
from autotune.inside.code.state import hash_of
from autotune.inside.data.feed import tensors_in

Hashes = dict[torch.Size, set[int]]
RECURRENT = (nn.RNNBase, nn.RNNCellBase)  # checked inside models too, which may keep the state


class CarriedState:
    """Looks for inputs of a module that the same module returned for the batch before.

    The forward seam calls ``called`` and ``returned`` during the first, untouched steps, and the
    observer calls ``next_batch``, all on the thread that trains. Tensors are compared by a hash of
    their values, so that a copied state is found too and no tensor is kept in memory. A tensor that
    a module returns unchanged from its inputs, such as positions, is not state.

    Attributes:
        found: Class name of a module that gets such a state; empty as long as no module does.
    """

    def __init__(self) -> None:
        self.found = ""
        self._before: WeakKeyDictionary[nn.Module, Hashes] = WeakKeyDictionary()
        self._returned: WeakKeyDictionary[nn.Module, Hashes] = WeakKeyDictionary()
        self._given: WeakKeyDictionary[nn.Module, Hashes] = WeakKeyDictionary()

    def next_batch(self) -> None:
        """Begin a new batch: the outputs so far become those of the batch before."""
        if self._returned:  # else the program takes several batches before it calls the model
            self._before, self._returned = self._returned, WeakKeyDictionary()

    def called(self, module: nn.Module, inputs: Any) -> None:
        """Compare a module's inputs with its outputs for the batch before, ahead of its forward."""
        if not _is_looked_at():
            return
        given: Hashes = defaultdict(set)
        self._given[module] = given
        before = self._before.get(module, {})
        for tensor, value in _hashed(inputs):
            given[tensor.shape].add(value)
            if value in before.get(tensor.shape, ()) and _varies(tensor):
                self.found = type(module).__name__

    def returned(self, module: nn.Module, output: Any) -> None:
        """Note the hashes of a module's outputs, leaving out those that are its inputs.

        Called after the module's forward.
        """
        if not _is_looked_at():
            return
        hashes = self._returned.setdefault(module, defaultdict(set))
        given = self._given.pop(module, {})
        for tensor, value in _hashed(output):
            if value not in given.get(tensor.shape, ()):
                hashes[tensor.shape].add(value)


def _hashed(values: Any) -> Iterator[tuple[torch.Tensor, int]]:
    """Yield the floating-point tensors in nested values that can be hashed, with their hashes."""
    for tensor in tensors_in(values):
        if tensor.is_floating_point() and (value := hash_of(tensor)) is not None:
            yield tensor, value


def _is_looked_at() -> bool:
    """Whether gradients are enabled, and neither the compiler nor torch.func traces this call."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling() and not is_transforming()


def _varies(state: torch.Tensor) -> bool:
    """Return whether a state has different values; a constant may be the start of any sequence."""
    return bool((state != state.flatten()[0]).any())
