"""Open files and connections of a dataset, which worker processes must not share.

Many datasets open their file when the first item is read. In a search the program has read items
before workers start, and a forked worker would share the file's position with all others. So the
copy that workers get is as if it had never been opened.

Objects are read by Python's own attributes and containers alone, to a limited depth; no code of
the program runs. Not covered: what a global, a closure or a class attribute holds.
"""

from __future__ import annotations

import copy
import io
import socket
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy
import torch

from autotune.inside.code.structure import attributes

MAX_PARTS, MAX_LEVELS, FEW = 500, 6, 64  # objects, nested objects, items of one container
# By module and name, so that no library is imported here. h5py's guide and LMDB's README both say
# that what was opened before a fork must not be used after it; so does SQLite's FAQ.
CONNECTIONS = {
    *("sqlite3.Connection", "sqlite3.Cursor", "zipfile.ZipFile", "tarfile.TarFile"),
    *("h5py._hl.base.HLObject", "netCDF4._netCDF4.Dataset", "tables.file.File"),
    *("cv2.VideoCapture", "decord.video_reader.VideoReader", "av.container.core.Container"),
    *("redis.client.Redis", "psycopg2.extensions.connection", "requests.sessions.Session"),
    *("pymongo.synchronous.mongo_client.MongoClient", "subprocess.Popen"),
}
LMDB = "Environment"  # its module depends on how lmdb was built
MAPPINGS = (dict, OrderedDict, defaultdict)

Path = tuple[tuple[str, Any], ...]
"""From a dataset to a part of it: ``("attr", name)`` or ``("item", index or key)`` for each step"""


def places(dataset: Any) -> dict[Path, bool]:
    """Return the places in a dataset, and whether something other than None lies there."""
    return {path: part is not None for path, part in _parts(dataset)}


def held_open(dataset: Any, built: Mapping[Path, bool]) -> str:
    """Return what a dataset has held open since its loader was built; empty if nothing.

    Each worker would move one position in one file. Whether a short run shows that is chance: of
    two runs of ``tests/programs/planted.py file``, one did.
    """
    held = (path for path, part in _parts(dataset) if path and _is_open(part) and built.get(path))
    path = next(held, ())
    return "".join(f".{key}" if how == "attr" else f"[{key!r}]" for how, key in path).lstrip(".")


def without_handles(dataset: Any, built: Mapping[Path, bool]) -> Any:
    """Return the dataset in the state that workers of a fresh process would get.

    Only the objects that lead to a handle are copied; everything else is shared with the original.

    Args:
        dataset: The program's own; returned itself if its items have opened nothing, or if it
            cannot be copied, as a subclass of list.
        built: Its places before any item was read. A handle in a place that held something then
            was not opened by an item.
    """
    opened = [path for path, part in _parts(dataset) if path and _is_open(part)]
    back = [path for path in opened if not built.get(path)]
    try:
        return _without(dataset, back, (), built) if back else dataset
    except TypeError:
        return dataset


def _parts(dataset: Any) -> Iterator[tuple[Path, Any]]:
    """Yield what a dataset holds, nearest first, with the way to it."""
    todo: deque[tuple[Path, Any]] = deque([((), dataset)])
    seen = set()
    for _ in range(MAX_PARTS):
        if not todo:
            return
        path, part = todo.popleft()
        yield path, part
        if id(part) not in seen and len(path) < MAX_LEVELS and not _is_open(part):
            seen.add(id(part))
            todo.extend(((*path, step), held) for step, held in _held(part))


def _held(part: Any) -> Iterator[tuple[tuple[str, Any], Any]]:
    if type(part) in {list, tuple} and len(part) <= FEW:
        yield from ((("item", number), held) for number, held in enumerate(part))
    elif type(part) in MAPPINGS and len(part) <= FEW:
        plain = ((key, held) for key, held in part.items() if type(key) in {str, int})
        yield from ((("item", key), held) for key, held in plain)
    elif not issubclass(type(part), (torch.Tensor, numpy.ndarray, type)):
        yield from ((("attr", name), held) for name, held in (attributes(part) or {}).items())


def _is_open(part: Any) -> bool:
    """Return whether something is an open file, socket or connection."""
    kind = type(part)
    if issubclass(kind, io.IOBase):
        is_in_memory = issubclass(kind, (io.BytesIO, io.StringIO))
        return not is_in_memory and not _says(part, "closed", otherwise=False)
    if issubclass(kind, socket.socket):
        return socket.socket.fileno(part) >= 0
    names = {f"{owner.__module__}.{owner.__qualname__}" for owner in kind.__mro__}
    is_lmdb = any(n.split(".")[0] == "lmdb" and n.endswith(f".{LMDB}") for n in names)
    if not is_lmdb and not names & CONNECTIONS:
        return False
    if hasattr(part, "fp"):  # a zip archive
        return part.fp is not None
    return not _says(part, "closed", otherwise=False)


def _says(part: Any, name: str, *, otherwise: bool) -> bool:
    found = getattr(part, name, otherwise)
    return found if isinstance(found, bool) else otherwise


def _without(part: Any, paths: Sequence[Path], place: Path, built: Mapping[Path, bool]) -> Any:
    """Return a copy of an object in which the handles at *paths* are unset.

    Args:
        part: The object.
        paths: Of the handles, from this object on.
        place: Of the object in the dataset.
        built: The dataset's places before any item was read.
    """
    below: dict[tuple[str, Any], list[Path]] = defaultdict(list)
    for path in paths:
        below[path[0]].append(path[1:])
    new = _shallow(part)
    for step, rest in below.items():
        how, key = step
        holder, here = vars(new) if how == "attr" else new, (*place, step)
        if rest != [()]:
            holder[key] = _without(holder[key], rest, here, built)
        # it was None before, or it is an entry of a list, whose length must stay
        elif here in built or isinstance(holder, list):
            holder[key] = None
        else:
            del holder[key]
    return tuple(new) if type(part) is tuple else new


def _shallow(part: Any) -> Any:
    """Return a shallow copy without calling any code of the object's class; tuples become lists."""
    if type(part) in {list, tuple}:
        return [*part]
    if type(part) in MAPPINGS:
        return copy.copy(part)
    new = object.__new__(type(part))
    vars(new).update(vars(part))
    return new
