"""Open files and connections of a dataset, which worker processes must not share.

Many datasets open their file when the first item is read. In a search the program has read items
before workers start, and a forked worker would share the file's position with all others. So
workers start while what items have opened is taken out of the dataset.

Objects are read by Python's own attributes and containers alone, to a limited depth; no code of
the program runs. Not covered: what a global, a closure, a class attribute or a tuple holds.
"""

from __future__ import annotations

import io
import socket
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


def places(dataset: Any) -> dict[str, bool]:
    """Return the places in a dataset, such as ``.files[0]``, and whether they are taken."""
    return {path: part is not None for path, _, _, part in _parts(dataset)}


def held_open(dataset: Any, built: Mapping[str, bool]) -> str:
    """Return what a dataset has held open since its loader was built; empty if nothing.

    Each worker would move one position in one file. Whether a short run shows that is chance: of
    two runs of ``tests/programs/planted.py file``, one did.
    """
    found = _parts(dataset)
    held = (path for path, _, _, part in found if built.get(path) and _is_open(part))
    return next(held, "").lstrip(".")


@contextmanager
def without_handles(dataset: Any, built: Mapping[str, bool]) -> Iterator[None]:
    """Take what items have opened out of the dataset within the context.

    Args:
        built: Its places before any item was read. A handle in a place that held something then
            was not opened by an item.
    """
    opened = [found for found in _parts(dataset) if not built.get(found[0]) and _is_open(found[3])]
    for path, holder, key, _ in opened:
        # it was None before, or it is an entry of a list, whose length must stay
        if path in built or isinstance(holder, list):
            holder[key] = None
        else:
            del holder[key]
    try:
        yield
    finally:
        for _, holder, key, part in opened:
            holder[key] = part


def _parts(dataset: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    todo: deque[tuple[str, int, Any]] = deque([("", 0, dataset)])
    seen = {id(dataset)}
    number = 0
    while todo:
        way, level, whole = todo.popleft()
        for path, holder, key, part in _held(whole, way):
            if (number := number + 1) > MAX_PARTS:
                return
            yield path, holder, key, part
            if id(part) not in seen and level < MAX_LEVELS - 1 and not _is_open(part):
                seen.add(id(part))
                todo.append((path, level + 1, part))


def _held(whole: Any, way: str) -> Iterator[tuple[str, Any, Any, Any]]:
    if type(whole) is list and len(whole) <= FEW:
        for number, part in enumerate(whole):
            yield f"{way}[{number}]", whole, number, part
    elif type(whole) in MAPPINGS and len(whole) <= FEW:
        for key, part in [*whole.items()]:
            if type(key) in {str, int}:
                yield f"{way}[{key!r}]", whole, key, part
    elif not issubclass(type(whole), (torch.Tensor, numpy.ndarray, type)):
        entries = attributes(whole) or {}
        for name, part in [*entries.items()]:
            yield f"{way}.{name}", entries, name, part


def _is_open(part: Any) -> bool:
    kind = type(part)
    if issubclass(kind, io.IOBase):
        is_in_memory = issubclass(kind, (io.BytesIO, io.StringIO))
        return not is_in_memory and getattr(part, "closed", False) is not True
    if issubclass(kind, socket.socket):
        return socket.socket.fileno(part) >= 0
    names = {f"{owner.__module__}.{owner.__qualname__}" for owner in kind.__mro__}
    is_lmdb = any(n.split(".")[0] == "lmdb" and n.endswith(f".{LMDB}") for n in names)
    if not is_lmdb and not names & CONNECTIONS:
        return False
    if hasattr(part, "fp"):  # a zip archive
        return part.fp is not None
    return getattr(part, "closed", False) is not True
