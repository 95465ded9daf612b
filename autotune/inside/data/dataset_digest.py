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


class _Hash:
    """A file that keeps a digest of what is written."""

    def __init__(self) -> None:
        self.digest, self._left = hashlib.blake2b(), MOST_BYTES

    def write(self, data: Any) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise OverflowError("it is too large")
        self.digest.update(data)


class _Pickler(pickle.Pickler):
    """Pickles tensors and arrays by some of their elements, and code by its identity."""

    def persistent_id(self, part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            return _of_tensor(part)
        if isinstance(part, numpy.ndarray) and not part.dtype.hasobject:
            return _of_array(part)
        return (type(part).__name__, id(part)) if isinstance(part, BY_IDENTITY) else None


def digest_of(*parts: Any) -> bytes | None:
    """Return a digest that differs after any of these objects has changed; None if it has none.

    A change of single elements of a large array goes unseen, if it is not a tensor. What cannot be
    pickled, or is very large, has no digest.
    """
    found = _Hash()
    try:
        _Pickler(found, pickle.HIGHEST_PROTOCOL).dump(parts)
    except Exception:  # noqa: BLE001 - the program's own code may raise anything
        return None
    return found.digest.digest()


def _of_tensor(tensor: torch.Tensor) -> Any:
    version = None if tensor.is_inference() else tensor._version  # noqa: SLF001 - autograd's own
    facts = (tuple(tensor.shape), str(tensor.dtype), version)
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return (*facts, id(tensor))
    flat = tensor.detach().as_subclass(torch.Tensor).contiguous().flatten()
    return (*facts, _of_array(flat.view(torch.uint8).numpy()))


def _of_array(array: numpy.ndarray[Any, Any]) -> Any:
    array = numpy.ndarray.view(array, numpy.ndarray)
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
    step = 1 if array.nbytes <= WHOLE_BYTES else array.size // SAMPLED
    return array.shape, array.dtype.str, numpy.asarray(flat[::step]).tobytes()
