"""Read what objects hold without running any code that their classes define.

A class of the program may load data, count, lock or raise when it is asked for an attribute, its
length, an item, a hash or its class. These functions ask the type instead, and call Python's own
methods of lists, mappings and objects.
"""

from __future__ import annotations

import collections
import enum
import pathlib
import types
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy
import torch

CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
PLAIN = (
    *(int, float, complex, str, bytes, type(None), range, slice, enum.Enum, pathlib.PurePath),
    *(torch.dtype, torch.device, numpy.generic, numpy.dtype),
)
EXACT = {int, float, complex, bool, str, bytes, type(None), range}  # hashed by Python alone
CONVERTED: tuple[tuple[type, Any], ...] = (
    *((int, int.__int__), (float, float.__float__), (complex, complex.__complex__)),
    *((str, str.__str__), (bytes, bytes.__bytes__)),
)


def is_a(value: Any, kinds: type | tuple[type, ...]) -> bool:
    """Return whether an object is an instance of some types, whatever its ``__class__`` claims."""
    return issubclass(type(value), kinds)


def attributes(value: Any) -> dict[str, Any] | None:
    """Return an object's ``__dict__`` itself, not a copy; None if it has none.

    A property that a class defines under this name is not called.
    """
    for owner in type(value).__mro__:
        place = vars(owner).get("__dict__")
        if type(place) is types.GetSetDescriptorType:
            found = place.__get__(value)
            return found if type(found) is dict else None
    return None


def slots(value: Any) -> dict[str, Any] | None:
    """Return the values in an object's slots by name; None if its classes define no slots."""
    owners = [c for c in type(value).__mro__ if "__slots__" in vars(c)]
    if not owners:
        return None
    held = {}
    for name, place in chain.from_iterable(vars(c).items() for c in owners):
        if type(place) is types.MemberDescriptorType:
            try:
                held[name] = place.__get__(value)
            except AttributeError:  # the slot is not set
                continue
    return held


def container(value: Any) -> type[Any] | None:
    """Return which of ``CONTAINERS`` something is, subclasses included; None for other things."""
    return next((kind for kind in CONTAINERS if is_a(value, kind)), None)


def length(value: Any) -> int:
    """Return the number of items in a container, whatever its class's ``__len__`` says."""
    kind = container(value)
    assert kind is not None, "containers have a length"
    return int(kind.__len__(value))


def items(value: Any) -> Iterable[Any]:
    """Return the items of a container; for a mapping the pairs of key and value."""
    kind = container(value)
    assert kind is not None, "containers have items"
    pairs: Iterable[Any] = kind.items(value) if kind is dict else kind.__iter__(value)
    return pairs


def values(value: Any) -> Iterable[Any]:
    """Return the items of a container; for a mapping its values."""
    held: Iterable[Any] = dict.values(value) if is_a(value, dict) else items(value)
    return held


def plain_value(value: Any) -> Any:
    """Return a plain value as one of Python's own types, so that comparing it runs no other code.

    Members of enumerations become their type and identity.
    """
    if is_a(value, enum.Enum):
        return type(value), id(value)
    if type(value) in EXACT:
        return value
    return next((own(value) for kind, own in CONVERTED if is_a(value, kind)), value)


def hashes_itself(many: Iterable[Any]) -> bool:
    """Return whether hashing these items runs no code of the program.

    That is so for Python's and some libraries' plain types, and for tuples of them.
    """
    kinds = set(map(type, many))
    if tuple in kinds:
        kinds |= set(map(type, chain.from_iterable(item for item in many if type(item) is tuple)))
        kinds.discard(tuple)
    return all(kind in EXACT or _is_librarys(kind) for kind in kinds)


def _is_librarys(kind: type) -> bool:
    """Return whether a type is one of NumPy's, torch's or pathlib's plain values."""
    return issubclass(kind, PLAIN) and kind.__module__ in {"numpy", "torch", "pathlib"}


def reversed_items(value: Collection[Any]) -> Iterator[Any]:
    """Return the items of a mapping, as pairs, or of a deque, from the end."""
    if is_a(value, dict):
        return reversed(dict.items(value))  # type: ignore[arg-type]
    return collections.deque.__reversed__(value)  # type: ignore[arg-type]
