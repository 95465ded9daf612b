"""Whether a dataset has changed since workers copied it, or an item from one time to the next."""

from __future__ import annotations

import hashlib
import pickle
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy
import torch

MOST_BYTES = 64 << 20  # pickled, besides arrays: about a tenth of a second
WHOLE_BYTES, SAMPLED = 1 << 20, 4096  # of an array that is read whole; elements of a larger one
BY_IDENTITY = (FunctionType, BuiltinFunctionType, ModuleType, type)


class _Digest:
    """The file to which the parts are pickled."""

    def __init__(self) -> None:
        self.hash, self._left = hashlib.blake2b(), MOST_BYTES

    def write(self, data: Any) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise OverflowError("it is too large")
        self.hash.update(data)


class _Pickler(pickle.Pickler):
    """Pickles tensors and arrays by some of their elements, and code by its identity."""

    def persistent_id(self, part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            version = None if part.is_inference() else part._version  # noqa: SLF001
            facts = (tuple(part.shape), str(part.dtype), version)
            if part.device.type != "cpu" or part.layout is not torch.strided:
                return (*facts, id(part))
            flat = part.detach().as_subclass(torch.Tensor).contiguous().flatten()
            return (*facts, _elements(flat.view(torch.uint8).numpy()))
        if isinstance(part, numpy.ndarray) and not part.dtype.hasobject:
            return part.shape, part.dtype.str, _elements(numpy.ndarray.view(part, numpy.ndarray))
        return (type(part).__name__, id(part)) if isinstance(part, BY_IDENTITY) else None


def digest_of(*parts: Any) -> bytes | None:
    """Return a digest that differs after any of these objects has changed; None if it has none.

    A change of single elements of a large array goes unseen, if it is not a tensor. What cannot be
    pickled, or is very large, has no digest.
    """
    found = _Digest()
    try:
        _Pickler(found, pickle.HIGHEST_PROTOCOL).dump(parts)
    except Exception:  # noqa: BLE001 - the program's own code may raise anything
        return None
    return found.hash.digest()


def _elements(array: numpy.ndarray[Any, Any]) -> bytes:
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
    step = 1 if array.nbytes <= WHOLE_BYTES else array.size // SAMPLED
    return numpy.asarray(flat[::step]).tobytes()
