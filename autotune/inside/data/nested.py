"""Tensors in nested containers: batches, arguments of models, and what models return.

``torch.utils._pytree`` walks them. It knows tuples, named tuples, lists, dictionaries, and what
libraries have registered with it, such as the outputs of transformers. Other mappings (such as
``BatchEncoding``) and subclasses of list and tuple are leaves to it, and are opened here: to
register them would change what the program itself gets from PyTorch.

Attributes of other objects are not searched.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_iter, tree_map


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value, in order."""
    for leaf in tree_iter(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif isinstance(leaf, Mapping):
            yield from tensors_in([*leaf.values()])
        elif isinstance(leaf, (list, tuple)):
            yield from tensors_in([*leaf])


def named_tensors(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in tuples, lists and mappings, in order, each with its innermost key.

    The name is empty where no mapping holds the tensor. Other containers are not opened.
    """
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from named_tensors(part, str(key))
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from named_tensors(part, name)


def first_tensor(value: Any) -> torch.Tensor | None:
    """Return the first tensor in a value that has a batch dimension; None if there is none."""
    if type(value) is tuple and value and isinstance(value[0], torch.Tensor) and value[0].dim():
        return value[0]  # the common case, in every step
    return next((t for t in tensors_in(value) if t.dim()), None)


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Return a value in new containers, with *change* applied to its tensors.

    Other objects stay the same, and so does a mapping without item assignment.
    """

    def changed(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return change(leaf)
        if isinstance(leaf, Mapping) and hasattr(leaf, "__setitem__"):
            new: Any = copy.copy(leaf)
            for key, part in leaf.items():
                new[key] = map_tensors(change, part)
            return new
        if isinstance(leaf, (list, tuple)):
            parts = [map_tensors(change, part) for part in leaf]
            # In torch 2.6 and 2.7, a class that is derived from a named tuple is a leaf
            return type(leaf)(*parts) if hasattr(leaf, "_fields") else type(leaf)(parts)
        return leaf

    # A model that returns one tensor is the common case, in every step
    return change(value) if isinstance(value, torch.Tensor) else tree_map(changed, value)
