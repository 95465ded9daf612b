"""What objects hold: read without running their code, and copied while tensors stay the same."""

from __future__ import annotations

import copy
from collections.abc import MutableMapping
from types import FunctionType, GetSetDescriptorType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

DEPTH = 5  # a cache holds layers in a list, each with its tensors in attributes
SHARED = (torch.Tensor, nn.Module, ModuleType, FunctionType, MethodType, type)


def attributes(value: Any) -> dict[str, Any] | None:
    """Return an object's ``__dict__`` itself, not a copy; None if it has none.

    A property that a class defines under this name is not called.
    """
    for owner in type(value).__mro__:
        place = vars(owner).get("__dict__")
        if type(place) is GetSetDescriptorType:
            found = place.__get__(value)
            return found if type(found) is dict else None
    return None


def structure_of(value: Any) -> Any:
    """Return a copy of nested lists, mappings and objects that holds the same tensors.

    Recomputation keeps such a copy of a block's arguments, because the block may append to a list
    or fill a cache in its first pass, as T5 does in training.

    Whoever appends to the copy or sets its entries does not change the original. Tensors, modules,
    functions and objects that cannot be copied are shared, as is all that lies deeper than
    ``DEPTH``.
    """
    return _copied(value, {}, DEPTH)


def _copied(value: Any, known: dict[int, Any], depth: int) -> Any:
    """Return the copy of a value; *known* maps ids to copies, for values that occur twice."""
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
    """Return a shallow copy; the value itself if it has no parts or cannot be copied."""
    is_container = isinstance(value, (list, set, MutableMapping))
    if not is_container and not getattr(value, "__dict__", None):
        return value
    try:
        return copy.copy(value)  # members of an enumeration return themselves
    except Exception:  # noqa: BLE001  # a class of the program may forbid copies
        return value


def _copied_tuple(value: tuple[Any, ...], known: dict[int, Any], depth: int) -> tuple[Any, ...]:
    """Return a tuple with copied parts; the tuple itself if no part was copied."""
    parts = [_copied(part, known, depth - 1) for part in value]
    if all(part is own for part, own in zip(parts, value, strict=True)):
        return value
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
