"""Bare looks: what objects hold, read without running a line of what their classes define.

A program's classes may load, count, lock or raise whenever they are asked for an attribute, their
length, an item, a hash, or even for their class. So types are asked instead, and Python's own
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
EXACT = {int, float, complex, bool, str, bytes, type(None), range}  # hashed by Python itself
CONVERTED: tuple[tuple[type, Any], ...] = (
    *((int, int.__int__), (float, float.__float__), (complex, complex.__complex__)),
    *((str, str.__str__), (bytes, bytes.__bytes__)),
)


def is_a(value: Any, kinds: type | tuple[type, ...]) -> bool:
    """Tell whether something is of a kind, whatever it says of its class."""
    return issubclass(type(value), kinds)


def attributes(value: Any) -> dict[str, Any] | None:
    """Return an object's own ``__dict__``, None where it has none."""
    for owner in type(value).__mro__:
        place = vars(owner).get("__dict__")
        if type(place) is types.GetSetDescriptorType:
            found = place.__get__(value)
            return found if type(found) is dict else None
    return None


def slots(value: Any) -> dict[str, Any] | None:
    """Return what an object holds in slots, None where its classes have none."""
    owners = [c for c in type(value).__mro__ if "__slots__" in vars(c)]
    if not owners:
        return None
    held = {}
    for name, place in chain.from_iterable(vars(c).items() for c in owners):
        if type(place) is types.MemberDescriptorType:
            try:
                held[name] = place.__get__(value)
            except AttributeError:  # nothing there yet
                continue
    return held


def container(value: Any) -> type[Any] | None:
    """Return the kind of container that something is, None for other things."""
    return next((kind for kind in CONTAINERS if is_a(value, kind)), None)


def length(value: Any) -> int:
    """Return how much a container holds."""
    kind = container(value)
    assert kind is not None, "containers have a length"
    return int(kind.__len__(value))


def items(value: Any) -> Iterable[Any]:
    """Return what a container holds, of mappings the pairs."""
    kind = container(value)
    assert kind is not None, "containers have items"
    pairs: Iterable[Any] = kind.items(value) if kind is dict else kind.__iter__(value)
    return pairs


def values(value: Any) -> Iterable[Any]:
    """Return what a container holds, of mappings the values."""
    held: Iterable[Any] = dict.values(value) if is_a(value, dict) else items(value)
    return held


def plain_value(value: Any) -> Any:
    """Return a plain value of Python's own type, which compares by itself alone."""
    if is_a(value, enum.Enum):
        return type(value), id(value)
    if type(value) in EXACT:
        return value
    return next((own(value) for kind, own in CONVERTED if is_a(value, kind)), value)


def hashes_itself(many: Iterable[Any]) -> bool:
    """Tell whether items, or those in tuples of them, are of types whose hash is Python's own."""
    kinds = set(map(type, many))
    if tuple in kinds:
        kinds |= set(map(type, chain.from_iterable(item for item in many if type(item) is tuple)))
        kinds.discard(tuple)
    return all(kind in EXACT or _is_librarys(kind) for kind in kinds)


def _is_librarys(kind: type) -> bool:
    return issubclass(kind, PLAIN) and kind.__module__ in {"numpy", "torch", "pathlib"}


def reversed_items(value: Collection[Any]) -> Iterator[Any]:
    """Return what a mapping or a deque holds, from its end."""
    if is_a(value, dict):
        return reversed(dict.items(value))  # type: ignore[arg-type]
    return collections.deque.__reversed__(value)  # type: ignore[arg-type]
