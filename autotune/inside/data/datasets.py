"""Pictures of a dataset: what the dataset and the code of its items hold at one moment.

Two pictures are compared to see what changed between two moments. A picture takes a few
milliseconds at most, however many samples there are: objects are read to a limited depth, and long
lists and large arrays are compared by a sample of their elements.

Covered: attributes, class attributes, items of containers, variables of closures and functions. Not
covered: a single changed entry of a long list, files and other things outside the process. If a
part could not be read, the picture says so: it is not whole.
"""

from __future__ import annotations

import argparse
import functools
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from enum import StrEnum
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy
import torch
from torch import nn

from autotune.inside.code import bare
from autotune.inside.code.bare import CONTAINERS, PLAIN, is_a
from autotune.inside.code.frames import OURS
from autotune.inside.data.item_code import globals_read, names_counted, names_read, own_code
from autotune.inside.data.resources import generator_state, open_handle, stays_out

MAX_PARTS = 500  # of a picture; each takes some 2 us
MAX_LEVELS = 4  # of nested objects, not counting the attributes in WRAPPERS
WRAPPERS = {"dataset", "datasets", "transform", "transforms", "whole"}
FEW = 64  # a container with more items is compared by a fingerprint
HASHED = 20_000  # items of a container that are all hashed, which takes some 4 ms
SAMPLED = 256  # items or elements that are read of larger containers and arrays
WHOLE_BYTES = 1 << 20  # of arrays in a picture that are kept whole, all together
ITEM_METHODS = ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward")
MODULE_NOISE = set(vars(nn.Module())) - {"training", "_parameters", "_buffers", "_modules"}
LIBRARIES = {"torch", "torchvision", "numpy", "PIL", "transformers", "datasets", "pandas"}
BARE_HOLDERS = (argparse.Namespace, types.SimpleNamespace)


class Kind(StrEnum):
    """The kinds of parts, which decide how a part is compared.

    A VALUE is compared by its value, a GENERATOR (random generator or iterator) by its state and an
    ARRAY by its elements. A CONTAINER is compared by its length and, if it is large, by a
    fingerprint of its items; the items of a small one are parts themselves. A HANDLE is an open
    file or connection. An OPAQUE part could not be read.
    """

    VALUE = "value"
    GENERATOR = "generator"
    HANDLE = "handle"
    ARRAY = "array"
    CONTAINER = "container"
    OPAQUE = "opaque"


class Step(NamedTuple):
    """One step from an object to a part of it.

    Attributes:
        how: ``root``, ``attr``, ``class`` (a class attribute), ``item`` (by index or a plain key),
            ``key`` (by a key that is an object of the program) or ``name`` (of a global or a
            closure variable).
        key: The name, index or key; for ``key`` the class name and id of the key, so that no object
            of the program is kept.
    """

    how: str
    key: Any


Path = tuple[Step, ...]


class Part(NamedTuple):
    """A part of a dataset at one moment.

    Attributes:
        kind: How it was read.
        value: Compares equal as long as the part has not changed.
        names: Attribute names on the way to the part. It matters only if the code of items reads
            all.
    """

    kind: Kind
    value: Any
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Picture:
    """A dataset at one moment.

    Attributes:
        parts: What was found, by path.
        read: Names that the code of its items reads.
        counted: Attribute names that this code counts up, such as ``self.hits += 1``.
        is_whole: Whether everything that the dataset holds was read.
    """

    parts: Mapping[Path, Part]
    read: frozenset[str]
    counted: frozenset[str]
    is_whole: bool

    def of(self, kind: Kind) -> dict[Path, Part]:
        """Return the parts of one kind, by path."""
        return {path: part for path, part in self.parts.items() if part.kind is kind}

    def is_used(self, path: Path) -> bool:
        """Return whether the code of items reads a part, as far as its names tell.

        A part without names counts as used.
        """
        return all(name in self.read for name in self.parts[path].names)


def look(**roots: object) -> Picture:
    """Return a picture of some objects, given by their names.

    What two of them share is listed under the first. Attributes are read without running code of
    the program's classes.
    """
    walk = _Walk()
    with torch._C.DisableTorchFunction():  # noqa: SLF001 - else tensor subclasses run code
        for name, root in roots.items():
            walk.visit((Step("root", name),), root, 0, ())
    return Picture(walk.parts, frozenset(walk.read), frozenset(walk.counted), walk.is_whole)


def in_words(path: Path) -> str:
    """Return the path of a part as the program would write it, e.g. ``collate_fn.seen[3]``.

    Paths in the dataset begin with the attribute's name; the dataset itself gives an empty text.
    """
    text = ""
    for how, key in path:
        match how:
            case "root":
                text = "" if key == "dataset" else str(key)
            case "item":
                text += f"[{key!r}]"
            case "key":
                text += f"[{key[0]}]"
            case "name":
                text = str(key)
            case _:
                text += f".{key}" if text else str(key)
    return text


class _Walk:
    """Walks through objects and collects their parts; ``look`` makes one per picture.

    It limits depth, number of parts and bytes, so that a picture takes milliseconds.
    """

    def __init__(self) -> None:
        self.parts: dict[Path, Part] = {}
        self.read: set[str] = set()
        self.counted: set[str] = set()
        self.is_whole = True
        # ids of visited objects, because objects may refer to each other
        self._seen: set[int] = set()
        self._functions: set[types.FunctionType] = set()
        self._bytes_left = WHOLE_BYTES

    def visit(self, path: Path, value: Any, level: int, names: tuple[str, ...]) -> None:
        """Note an object as a part, and visit what it holds.

        Args:
            path: From a root to the object.
            value: The object.
            level: How many objects contain it.
            names: Attribute names on the way to it, which the code of items must read.
        """
        if is_a(value, PLAIN):
            self.parts[path] = Part(Kind.VALUE, _short(value), names)
            return
        if id(value) in self._seen:
            return
        try:
            self._look_into(path, value, level, names)
        except Exception:  # noqa: BLE001 - libraries' objects may raise anything when looked at
            self._opaque(path, value, names)

    def _look_into(self, path: Path, value: Any, level: int, names: tuple[str, ...]) -> None:
        """Note an object that is not a plain value, unless it is the same in every process."""
        if stays_out(value):
            return
        self._seen.add(id(value))
        if level > MAX_LEVELS or len(self._seen) > MAX_PARTS:
            self._opaque(path, value, names)
        elif (state := generator_state(value)) is not None:
            self.parts[path] = Part(Kind.GENERATOR, state, names)
        elif handle := open_handle(value):
            self.parts[path] = Part(Kind.HANDLE, handle, names)
        elif is_a(value, (torch.Tensor, numpy.ndarray)):
            self.parts[path] = Part(Kind.ARRAY, self._content(value), names)
        elif is_a(value, CONTAINERS):
            self._container(path, value, level, names)
        elif _is_callable(value):
            self._callable(path, value, level, names)
        else:
            self._instance(path, value, level, names)

    def _opaque(self, path: Path, value: Any, names: tuple[str, ...]) -> None:
        """Note an object that cannot be read; its value is only its class and identity."""
        self.is_whole = False
        self.parts[path] = Part(Kind.OPAQUE, (type(value), id(value)), names)

    def _content(self, array: Any) -> tuple[Any, ...]:
        """Return the shape, type, version and elements of a tensor or array.

        Large ones are sampled. Tensors on a device or in another layout are compared by version and
        identity: reading them would wait for the device or copy them.
        """
        if is_a(array, torch.Tensor):
            version = None if array.is_inference() else array._version  # noqa: SLF001
            facts = (array.shape, array.dtype, version)
            if array.device.type != "cpu" or not array.is_contiguous() or array.is_sparse:
                return (*facts, id(array))
            flat = array.detach().reshape(-1)
            size, item = flat.numel(), flat.element_size()
            flat = flat[:: self._stride(size, item)].contiguous()
            return (*facts, item, flat.view(torch.uint8).numpy().tobytes() if size else b"")
        array = numpy.ndarray.view(array, numpy.ndarray)
        facts = (array.shape, array.dtype.str, None)
        flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
        flat = flat[:: self._stride(array.size, array.itemsize)]
        if array.dtype.hasobject:
            return (*facts, tuple(map(_atom, flat)))
        return (*facts, array.itemsize, flat.tobytes())

    def _stride(self, size: int, item_bytes: int) -> int:
        """Return the stride to read an array with: 1 while the byte budget lasts, else larger."""
        if size * item_bytes <= self._bytes_left:
            self._bytes_left -= size * item_bytes
            return 1
        return max(1, size // SAMPLED)

    def _container(self, path: Path, value: Any, level: int, names: tuple[str, ...]) -> None:
        """Note a container: a small one by its items, a large one or a set by a fingerprint."""
        size, is_mapping = bare.length(value), is_a(value, dict)
        if size > FEW or is_a(value, (set, frozenset)):
            self.parts[path] = Part(Kind.CONTAINER, (size, _fingerprint(value)), names)
            self.is_whole &= all(map(_is_told, islice(bare.values(value), 2)))
            return
        self.parts[path] = Part(Kind.CONTAINER, (size, None), names)
        held = list(bare.items(value))
        for key, item in held if is_mapping else enumerate(held):
            self.visit((*path, _step(key)), item, level, names)

    def _callable(self, path: Path, value: Any, level: int, names: tuple[str, ...]) -> None:
        """Note a function, method or partial: what it is bound to, and what its code reads."""
        match value:
            case types.FunctionType():
                self.parts[path] = Part(Kind.VALUE, id(value.__code__), names)
                self._code(value, None, path, level)
            case types.MethodType():
                self.visit((*path, Step("attr", "__self__")), value.__self__, level, names)
                self._code(value.__func__, type(value.__self__), path, level)
            case functools.partial():
                parts = (value.func, value.args, value.keywords)
                for key, part in zip(("func", "args", "keywords"), parts, strict=True):
                    self.visit((*path, Step("attr", key)), part, level, names)
            case _:  # functools.lru_cache
                self.visit(path, value.__wrapped__, level, names)

    def _instance(self, path: Path, value: Any, level: int, names: tuple[str, ...]) -> None:
        """Note an object's attributes, its class attributes, and the code of its item methods.

        An attribute of the program's classes, or of a plain holder of values, counts as used only
        if the code of items names it. Attributes of a library's object count as used whenever the
        object does, because the library's code is not read.
        """
        attributes = _attributes(value)
        if attributes is None:
            self._opaque(path, value, names)
            return
        is_own = own_code(type(value), LIBRARIES)
        is_bare = is_a(value, BARE_HOLDERS) or is_dataclass(type(value))
        self.parts[path] = Part(Kind.VALUE, type(value), names)
        for how, holder in (("attr", attributes), ("class", _class_attributes(value))):
            for key, part in holder.items():
                needed = (*names, key) if is_own or is_bare else names
                deeper = level + (key not in WRAPPERS)
                self.visit((*path, Step(how, key)), part, deeper, needed)
        for method in ITEM_METHODS if is_own else ():
            function = getattr(type(value), method, None)
            if isinstance(function, types.FunctionType):
                self._code(function, type(value), path, level)

    def _code(self, function: Any, owner: type | None, path: Path, level: int) -> None:
        """Note what a function of the program reads, and follow the functions that it calls."""
        is_ours = function.__code__.co_filename.startswith(OURS)  # a seam has replaced it
        if is_ours or function in self._functions or not own_code(function, LIBRARIES):
            return
        self._functions.add(function)
        names = names_read(function.__code__)
        self.read |= names
        self.counted |= names_counted(function.__code__)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        closed = {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}
        read = globals_read(function.__code__) & function.__globals__.keys()
        known = {name: function.__globals__[name] for name in read}
        known |= closed | _defaults(function)
        root = path[:1] if path[0].key != "dataset" else ()
        for name, value in known.items():
            if isinstance(value, types.FunctionType):
                self._code(value, None, path, level)
            elif not isinstance(value, type):
                self.visit((*root, Step("name", name)), value, level + 1, ())
        members = _members(owner) if owner is not None else {}
        for name in names & members.keys():
            if (method := _function_of(members[name])) is not None:
                self._code(method, owner, path, level)


def _defaults(function: types.FunctionType) -> dict[str, Any]:
    """Return the default arguments of a function by name, as in ``lambda x, rng=rng: ...``."""
    values = function.__defaults__ or ()
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    given = dict(zip(names[len(names) - len(values) :], values, strict=True))
    return given | (function.__kwdefaults__ or {})


def _members(owner: type) -> dict[str, Any]:
    """Return what a class and its bases define, leaving out Python's and the libraries' classes."""
    bases = [c for c in reversed(owner.__mro__) if own_code(c, LIBRARIES)]
    return {name: member for c in bases for name, member in vars(c).items()}


def _step(key: Any) -> Step:
    """Return the step to an entry of a container, without keeping a key that is an object."""
    plain = bare.hashes_itself((key,))
    return Step("item", key) if plain else Step("key", (type(key).__name__, id(key)))


def _function_of(member: Any) -> types.FunctionType | None:
    """Return the Python function of a method or property; None if there is no such function."""
    match type(member):
        case kind if issubclass(kind, property):
            member = member.fget
        case functools.cached_property:
            member = member.func
        case kind if issubclass(kind, (classmethod, staticmethod)):
            member = member.__func__
    if type(member) is not types.FunctionType:
        return None
    inner = vars(member).get("__wrapped__")
    return inner if type(inner) is types.FunctionType else member


def _is_callable(value: Any) -> bool:
    cached = functools._lru_cache_wrapper  # noqa: SLF001 - the type has no other name
    return is_a(value, (types.FunctionType, types.MethodType, functools.partial, cached))


def _attributes(value: Any) -> dict[str, Any] | None:
    """Return what an object holds in attributes and slots; None if Python cannot see that.

    Attributes that every nn.Module has are left out.
    """
    own, slots = bare.attributes(value), bare.slots(value)
    if own is None:
        return {} if type(value) is object else slots
    noise = MODULE_NOISE if is_a(value, nn.Module) else ()
    return {k: v for k, v in own.items() if k not in noise} | (slots or {})


def _class_attributes(value: Any) -> dict[str, Any]:
    """Return the class attributes of an object, except functions and what the object overrides."""
    own = bare.attributes(value) or {}
    return {
        name: member
        for name, member in _members(type(value)).items()
        if not name.startswith("__") and not hasattr(type(member), "__get__") and name not in own
    }


def _short(value: Any) -> Any:
    """Return an immutable value, or a short stand-in for long text.

    NaN becomes a text, because it is unequal to itself.
    """
    plain = bare.plain_value(value)
    if type(plain) in (str, bytes) and len(plain) > SAMPLED:
        return len(plain), plain[:FEW], plain[-FEW:], id(value)
    is_number = is_a(plain, (float, complex))
    return "nan" if is_number and plain != plain else plain  # noqa: PLR0124 - true for NaN


def _fingerprint(many: Any) -> int:
    """Return a number that almost surely differs after a large container has changed.

    Short containers of plain values are hashed as a whole, others by a sample of their items.
    """
    is_short = bare.length(many) <= HASHED and bare.hashes_itself([*islice(bare.items(many), 1)])
    held = tuple(bare.items(many)) if is_short else ()
    if held and bare.hashes_itself(held):
        return hash(frozenset(held) if is_a(many, (set, frozenset)) else held)
    return hash((id(many), *map(_atom, _samples(many))))


def _is_told(item: Any) -> bool:
    """Return whether ``_atom`` can show a change in an item of a large container."""
    return is_a(item, (*PLAIN, list, tuple, dict, torch.Tensor, numpy.ndarray))


def _samples(many: Any) -> Iterable[Any]:
    """Return items spread over a list or tuple, or from both ends of a mapping, set or deque."""
    for kind in (list, tuple):
        if is_a(many, kind):
            return kind.__getitem__(many, slice(None, None, max(1, bare.length(many) // SAMPLED)))
    if is_a(many, (set, frozenset)):
        return islice(bare.items(many), SAMPLED)
    ends = (bare.items(many), bare.reversed_items(many))
    return chain.from_iterable(islice(end, SAMPLED) for end in ends)


def _atom(item: Any, level: int = 0) -> Any:
    """Return a value that stands for one item of a large container; by identity if need be."""
    if is_a(item, PLAIN):
        return _short(item)
    if is_a(item, (list, tuple, dict)) and level < 2 and bare.length(item) <= FEW:
        return bare.length(item), *(_atom(part, level + 1) for part in bare.items(item))
    if is_a(item, torch.Tensor) and not item.is_inference():
        return id(item), item._version  # noqa: SLF001 - autograd's own counter
    if is_a(item, numpy.ndarray) and not item.dtype.hasobject:
        item_view = numpy.ndarray.view(item, numpy.ndarray)
        return id(item), item_view.flat[:: max(1, item.size // 4)].tobytes()
    return id(item)
