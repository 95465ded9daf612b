"""Carried state: what a model returns for one batch and gets as an argument with the next."""

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
RECURRENT = (nn.RNNBase, nn.RNNCellBase)  # looked at within models that keep their state themselves


class CarriedState:
    """Looks, in the untouched steps, for tensors that a module returned for the batch before.

    By their values: a program that copies its state carries it as well. No tensor is kept. What a
    module only hands through, as positions or the batch itself, is no state that it returned.

    Attributes:
        found: Class name of a module that gets such a state, empty as long as none does.
    """

    def __init__(self) -> None:
        self.found = ""
        self._before: WeakKeyDictionary[nn.Module, Hashes] = WeakKeyDictionary()
        self._returned: WeakKeyDictionary[nn.Module, Hashes] = WeakKeyDictionary()
        self._given: WeakKeyDictionary[nn.Module, Hashes] = WeakKeyDictionary()

    def next_batch(self) -> None:
        """The program goes on to another batch."""
        if self._returned:  # not one of several that are handed out together
            self._before, self._returned = self._returned, WeakKeyDictionary()

    def called(self, module: nn.Module, inputs: Any) -> None:
        """Look at what a module is called with."""
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
        """Note what a module returns."""
        if not _is_looked_at():
            return
        hashes = self._returned.setdefault(module, defaultdict(set))
        given = self._given.pop(module, {})
        for tensor, value in _hashed(output):
            if value not in given.get(tensor.shape, ()):
                hashes[tensor.shape].add(value)


def _hashed(values: Any) -> Iterator[tuple[torch.Tensor, int]]:
    for tensor in tensors_in(values):
        if tensor.is_floating_point() and (value := hash_of(tensor)) is not None:
            yield tensor, value


def _is_looked_at() -> bool:
    return torch.is_grad_enabled() and not torch.compiler.is_compiling() and not is_transforming()


def _varies(state: torch.Tensor) -> bool:
    """Tell whether a state is more than a constant, with which any sequence may begin."""
    return bool((state != state.flatten()[0]).any())
