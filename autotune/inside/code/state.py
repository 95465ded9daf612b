"""Values that show whether an object has changed, read to a depth of a few levels."""

from __future__ import annotations

import inspect
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy
import torch
from torch import nn

from autotune.inside.code import bare
from autotune.inside.code.bare import CONTAINERS, is_a, plain_value
from autotune.inside.data.item_code import globals_read, own_code

DEPTH = 3  # enough for a list in an attribute's object, such as self.log.rows
MAX_PARTS = 64  # items or attributes that are read of one object
MAX_BYTES = 1 << 26  # of an array that is hashed whole, in some 20 ms
MAX_ELEMENTS = 1024  # that are read of a larger array
PLAIN = (int, float, complex, bool, str, bytes, type(None))


@dataclass(frozen=True)
class Tensor:
    """A tensor's state, in which any write shows.

    Most writes raise the version. A write through ``.data`` does not, but changes the values.

    Attributes:
        version: Autograd's counter of in-place changes.
        values: A hash of the values; None if torch cannot hash them.
    """

    version: int
    values: int | None


def state_of(value: Any, depth: int = DEPTH) -> Any:
    """Return a value that compares equal as long as an object has not changed.

    Modules, classes and whatever lies deeper than *depth* are not read; changes there go unseen.

    Args:
        value: The object.
        depth: How many levels of objects in objects to read.
    """
    if is_a(value, PLAIN):
        plain = plain_value(value)
        return plain if plain == plain else "nan"  # noqa: PLR0124 - false for NaN
    if is_a(value, torch.Tensor):
        return _tensor(value)
    for kind, look in KINDS:
        if is_a(value, kind):
            return look(value)
    return [(name, state_of(part, depth - 1)) for name, part in _parts(value)] if depth else None


def hash_of(tensor: torch.Tensor) -> int | None:
    """Return a hash of a tensor's values; None if torch cannot hash a tensor of this type.

    Waits for the tensor's device.
    """
    try:
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - else tensor subclasses run code
            values = tensor.detach()
            values = torch.view_as_real(values) if values.is_complex() else values
            return int(torch.hash_tensor(values).item())
    except (RuntimeError, NotImplementedError):
        return None


def _tensor(tensor: torch.Tensor) -> Tensor | None:
    """Return a tensor's state; None for tensors without values or without a version counter."""
    with torch._C.DisableTorchFunction():  # noqa: SLF001 - else tensor subclasses run code
        if tensor.is_meta or tensor.is_inference():
            return None
        return Tensor(tensor._version, hash_of(tensor))  # noqa: SLF001


def _some(array: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    """Return all elements of an array, or a sample of a large one, which may map a whole file."""
    return array if array.nbytes <= MAX_BYTES else array.flat[:: array.size // MAX_ELEMENTS + 1]


KINDS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (torch.Generator, lambda own: own.get_state().numpy().tobytes()),
    (random.Random, lambda own: own.getstate()),
    (numpy.random.RandomState, lambda own: pickle.dumps(own.get_state())),
    (numpy.random.Generator, lambda own: pickle.dumps(own.bit_generator.state)),
    (numpy.ndarray, lambda own: None if own.dtype.hasobject else hash(_some(own).tobytes())),
    ((nn.Module, ModuleType, type), lambda _: None),
)


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the parts of an object by name: variables, arguments, items or attributes."""
    if is_a(value, FunctionType):
        yield from named_by(value)
    elif is_a(value, MethodType):
        yield "self", value.__self__
        if is_a(value.__func__, FunctionType):
            yield from named_by(value.__func__)
    elif is_a(value, partial):
        yield from (("function", value.func), ("arguments", (value.args, value.keywords)))
    elif is_a(value, CONTAINERS):
        yield "len", bare.length(value)
        if not is_a(value, (set, frozenset)):
            few = islice(bare.items(value), MAX_PARTS)
            yield from few if is_a(value, dict) else enumerate(few)
    else:
        yield from islice((bare.attributes(value) or {}).items(), MAX_PARTS)


def named_by(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield a function's closure and global variables by name; nothing for PyTorch's functions."""
    function = inspect.unwrap(function)
    if not is_a(function, FunctionType) or not own_code(function, {"torch"}):
        return
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        if cell != CellType():
            yield name, cell.cell_contents
    for name in sorted(globals_read(code) & function.__globals__.keys()):
        yield name, function.__globals__[name]
