"""Structure: copies of lists, mappings and objects that hold the same tensors as the originals."""

from __future__ import annotations

import copy
from collections.abc import MutableMapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

DEPTH = 5  # a cache holds layers in a list, each with its tensors in attributes
SHARED = (torch.Tensor, nn.Module, ModuleType, FunctionType, MethodType, type)


def structure_of(value: Any) -> Any:
    """Return a copy of *value* that whoever appends to it or sets its entries changes alone.

    Tensors, modules and what cannot be copied stay the same; a value without other parts does too.
    """
    return _copied(value, {}, DEPTH)


def _copied(value: Any, known: dict[int, Any], depth: int) -> Any:
    if not depth or isinstance(value, SHARED):
        return value
    if id(value) in known:
        return known[id(value)]
    if isinstance(value, tuple):
        return _copied_tuple(value, known, depth)
    twin = _twin(value)
    if twin is value:
        return value
    known[id(value)] = twin
    if isinstance(twin, list):
        twin[:] = [_copied(part, known, depth - 1) for part in twin]
    places = [twin] if isinstance(twin, dict) else []
    for entries in [*places, *([vars(twin)] if hasattr(twin, "__dict__") else [])]:
        for name, part in list(entries.items()):
            dict.__setitem__(entries, name, _copied(part, known, depth - 1))
    return twin


def _twin(value: Any) -> Any:
    """Return a shallow copy, the value itself where there is nothing to copy or one of it only."""
    is_container = isinstance(value, (list, set, MutableMapping))
    if not is_container and not getattr(value, "__dict__", None):
        return value
    try:
        return copy.copy(value)  # an enumeration's members return themselves
    except Exception:  # noqa: BLE001  # a class of the program's says that it is not to be copied
        return value


def _copied_tuple(value: tuple[Any, ...], known: dict[int, Any], depth: int) -> tuple[Any, ...]:
    parts = [_copied(part, known, depth - 1) for part in value]
    if all(part is own for part, own in zip(parts, value, strict=True)):
        return value
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
