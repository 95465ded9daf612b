"""Recognise what has another meaning in a copied process: generators, open files, connections.

A worker process gets a copy of the dataset. Copied random generators repeat the same numbers in
each worker, and copied handles share one file position or connection.
"""

from __future__ import annotations

import io
import itertools
import logging
import random
import socket
import sys
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy
import torch

from autotune.inside.code.bare import is_a
from autotune.inside.data.item_code import own_code

# By module and name, so that no library is imported here. h5py's guide and LMDB's README both say
# that what was opened before a fork must not be used after it; so does SQLite's FAQ.
CONNECTIONS = {
    "sqlite3.Connection": "SQLite connection",
    "sqlite3.Cursor": "SQLite cursor",
    "zipfile.ZipFile": "zip archive",
    "tarfile.TarFile": "tar archive",
    "h5py._hl.base.HLObject": "HDF5 file",
    "Environment": "LMDB environment",  # lmdb's module for it depends on how it was built
    "netCDF4._netCDF4.Dataset": "netCDF file",
    "tables.file.File": "HDF5 file",
    "cv2.VideoCapture": "video",
    "decord.video_reader.VideoReader": "video",
    "av.container.core.Container": "video",
    "redis.client.Redis": "Redis connection",
    "psycopg2.extensions.connection": "PostgreSQL connection",
    "pymongo.synchronous.mongo_client.MongoClient": "MongoDB connection",
    "requests.sessions.Session": "HTTP session",
    "subprocess.Popen": "process",
}
# Modules whose objects are shared by processes, belong to one process, or never change
OUTSIDE = {"multiprocessing", "threading", "_thread", "logging", "pyarrow", "re", "datetime"}
NUMPY_GLOBAL = numpy.random.mtrand._rand  # noqa: SLF001 - seeded by numpy.random.seed
PYTHON_GLOBAL = random._inst  # noqa: SLF001 - seeded by random.seed

STATELESS = (
    *(types.ModuleType, type, types.BuiltinFunctionType, random.SystemRandom),
    *(io.BytesIO, io.StringIO, logging.Logger),
)


def _frozen(state: Any) -> Any:
    """Return a generator's state as a hashable value."""
    if isinstance(state, dict):
        return tuple((key, _frozen(part)) for key, part in state.items())
    return state.tobytes() if isinstance(state, numpy.ndarray) else state


GENERATORS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (random.Random, random.Random.getstate),
    (numpy.random.Generator, lambda own: _frozen(own.bit_generator.state)),
    (numpy.random.BitGenerator, lambda own: _frozen(own.state)),
    (numpy.random.RandomState, lambda own: _frozen(own.get_state(legacy=False))),
    (torch.Generator, lambda own: own.get_state().numpy().tobytes()),
    (itertools.count, repr),
    (types.GeneratorType, lambda own: own.gi_frame and own.gi_frame.f_lasti),
)


def generator_state(value: Any) -> int | None:
    """Return a hash of the state of a random generator or an iterator; None for anything else."""
    look = next((look for kind, look in GENERATORS if is_a(value, kind)), None)
    if look is None and type(value).__module__ in {"builtins", "itertools"}:
        # built-in iterators over sequences tell by their length hint how far they are
        is_iterator = hasattr(type(value), "__next__") and hasattr(type(value), "__length_hint__")
        look = (lambda own: own.__length_hint__()) if is_iterator else None
    return None if look is None else hash(look(value))


def open_handle(value: Any) -> str | None:
    """Return the kind of an open file, socket or connection; None for anything else.

    A closed one is harmless in a copy, so it gives None too.
    """
    if is_a(value, io.IOBase):
        return None if is_a(value, (io.BytesIO, io.StringIO)) or _is_closed(value) else "file"
    if is_a(value, socket.socket):
        return "socket" if socket.socket.fileno(value) >= 0 else None
    for owner in type(value).__mro__:
        name = f"{owner.__module__}.{owner.__qualname__}"
        if str(owner.__module__).partition(".")[0] == "lmdb":
            name = owner.__qualname__
        if name in CONNECTIONS:
            return CONNECTIONS[name] if _is_open(value) else None
    return None


def _is_closed(file: Any) -> bool:
    """Return whether a file is closed, read from the ``closed`` of Python's own classes.

    A property ``closed`` of the program's class might run any code.
    """
    owners = [c for c in type(file).__mro__ if "closed" in vars(c) and own_code(c, ()) is False]
    return bool(vars(owners[0])["closed"].__get__(file)) if owners else False


def stays_out(value: Any) -> bool:
    """Return whether something is not part of a dataset's state, or is the same in every process.

    The global generators of Python, NumPy and torch are left out because torch seeds them in each
    worker (``torch.utils.data._utils.worker._worker_loop``).
    """
    if is_a(value, STATELESS) or any(value is thing for thing in _of_the_process()):
        return True
    if is_a(value, torch.Tensor):
        return value.device.type == "cpu" and bool(value.is_shared())
    if is_a(value, numpy.ndarray):
        return _is_shared_array(value)
    return str(type(value).__module__).partition(".")[0] in OUTSIDE


def _of_the_process() -> tuple[Any, ...]:
    """Return the global generators and the standard streams, which every process has."""
    streams = (sys.stdin, sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return NUMPY_GLOBAL, PYTHON_GLOBAL, torch.default_generator, *streams


def _is_shared_array(array: numpy.ndarray[Any, Any]) -> bool:
    """Return whether an array lies in memory that forked processes share."""
    base: Any = array
    while isinstance(base, numpy.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    names = {type(base).__module__.partition(".")[0], type(base).__name__}
    return bool(names & {"mmap", "multiprocessing"}) or hasattr(type(base), "_type_")


def _is_open(value: Any) -> bool:
    """Return whether a connection of ``CONNECTIONS`` is open; True if it does not say."""
    if hasattr(value, "fp"):
        return value.fp is not None
    if isinstance(closed := getattr(value, "closed", None), bool):
        return not closed
    if type(value).__module__.startswith("h5py"):
        return bool(value)
    with suppress(Exception):
        return bool(getattr(value, "isOpened", lambda: True)())
    return True
