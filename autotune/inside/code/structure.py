"""What objects hold: read without running their code, and copied while tensors stay the same."""

from __future__ import annotations

import io
import pickle
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

SHARED = (torch.Tensor, nn.Module, ModuleType, FunctionType, MethodType, type, torch.Generator)


def attributes(value: Any) -> dict[str, Any] | None:
    """Return an object's ``__dict__`` itself, not a copy; None if it has none."""
    try:
        found = object.__getattribute__(value, "__dict__")  # past one that the class defines
    except AttributeError:
        return None
    return found if type(found) is dict else None


def structure_of(value: Any) -> Any:
    """Return a copy of nested containers and objects that holds the same tensors.

    Recomputation keeps such a copy of a block's arguments, because the block may append to a list
    or fill a cache in its first pass, as T5 does in training. Tensors, modules and functions are
    shared, and so is a value with a part that cannot be pickled.
    """
    if value is None or isinstance(value, (bool, int, float, str, *SHARED)):
        return value
    pickler = _Pickler(file := io.BytesIO())
    try:
        pickler.dump(value)
        file.seek(0)
        unpickler = pickle.Unpickler(file)  # noqa: S301 - pickled here
        unpickler.persistent_load = pickler.shared.__getitem__  # type: ignore[method-assign]
        return unpickler.load()
    except Exception:  # noqa: BLE001  # a class of the program may forbid copies
        return value


class _Pickler(pickle.Pickler):
    """Pickles all but what is shared."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.shared: list[Any] = []

    def persistent_id(self, value: Any) -> int | None:
        has_say = isinstance(vars(type(value)).get("__copy__"), FunctionType)  # such as a singleton
        if not isinstance(value, SHARED) and not has_say:
            return None
        self.shared.append(value)
        return len(self.shared) - 1
