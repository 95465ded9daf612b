"""Library functions that open files in C code, where a patch of Python's ``open`` has no effect.

For each function the table says which argument holds the path, so that the path can be replaced
before the C code sees it. numpy, PIL, pickle and json call Python's ``open`` and need no row here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

from autotune.inside.hubs.patches import Patches

PathFor = Callable[[str, str], Any]
"""Maps a path and an ``open`` mode to the path to open; returns the same object for no change."""


@dataclass(frozen=True)
class FileCall:
    """A library function that opens a file.

    Attributes:
        module: The module in which callers look the function up.
        name: The function's name, or that of a class whose constructor opens the file.
        position: Index of the path among the positional arguments, from 0 and without ``self``.
        keyword: Name of the path argument.
        mode: The mode in which it opens the file, in the notation of ``open``. If the function
            takes a mode, this is the mode that it uses without one.
        has_mode: Whether the argument after the path is a mode. True only for classes.
    """

    module: str
    name: str
    position: int
    keyword: str
    mode: str
    has_mode: bool = False


CALLS = (
    FileCall("safetensors", "serialize_file", 1, "filename", "w"),
    FileCall("safetensors", "safe_open", 0, "filename", "r"),
    *(
        FileCall(f"safetensors.{kind}", "save_file", 1, "filename", "w")
        for kind in ("torch", "numpy")
    ),
    *(
        FileCall(f"safetensors.{kind}", "load_file", 0, "filename", "r")
        for kind in ("torch", "numpy")
    ),
    FileCall("safetensors.torch", "save_model", 1, "filename", "w"),
    FileCall("safetensors.torch", "load_model", 1, "filename", "r"),
    FileCall("h5py", "File", 0, "name", "r", has_mode=True),
    FileCall("sqlite3", "connect", 0, "database", "a"),
    FileCall("sqlite3.dbapi2", "connect", 0, "database", "a"),
    FileCall("cv2", "imwrite", 0, "filename", "w"),
    FileCall("cv2", "imread", 0, "filename", "r"),
)


def redirect(call: FileCall, module: ModuleType, path_for: PathFor, patches: Patches) -> None:
    """Patch a library function so that it opens the path that *path_for* returns.

    Called when the module has been imported. A function that this version of the library lacks is
    left out silently.

    Args:
        call: The function to patch.
        module: The imported module that holds it.
        path_for: Maps a path and a mode to the path to open.
        patches: Records the replacement, so that the seam can undo it.
    """
    found = getattr(module, call.name, None)
    if found is None:
        return
    # h5py.File is a class, and programs test isinstance() against it. So its constructor is
    # wrapped; a function in its place would break those tests.
    is_class = call.has_mode
    original = found.__init__ if is_class else found
    first = 1 if is_class else 0

    @wraps(original)
    def opening(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _redirected(call, args, kwargs, first, path_for)
        return original(*args, **kwargs)

    if is_class:
        patches.replace(found, "__init__", opening)
    else:
        patches.replace(module, call.name, opening)


def _redirected(
    call: FileCall, args: tuple[Any, ...], kwargs: dict[str, Any], first: int, path_for: PathFor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with its path replaced.

    Args:
        call: The function that is called.
        args: The program's positional arguments.
        kwargs: The program's keyword arguments.
        first: Index of the first argument after ``self``: 1 for constructors, else 0.
        path_for: Maps a path and a mode to the path to open.
    """
    at = first + call.position
    path = args[at] if len(args) > at else kwargs.get(call.keyword)
    mode = call.mode
    if call.has_mode:
        mode = (args[at + 1] if len(args) > at + 1 else kwargs.get("mode")) or call.mode
    place = _place(path, mode, path_for, is_uri=bool(kwargs.get("uri")))
    if place is path:
        return args, kwargs
    if len(args) > at:
        return (*args[:at], place, *args[at + 1 :]), kwargs
    return args, {**kwargs, call.keyword: place}


def _place(path: Any, mode: str, path_for: PathFor, *, is_uri: bool) -> Any:
    """Return the path or SQLite URI to open; the same object if nothing is to be redirected.

    Unchanged are file objects, empty names, ``:memory:``, and SQLite URIs that cannot write a file
    (``mode=ro``, ``mode=memory``, ``immutable``).
    """
    if not isinstance(path, (str, os.PathLike)):
        return path
    name = os.fspath(path)
    if not isinstance(name, str) or name in {"", ":memory:"}:
        return path
    if not (is_uri and name.startswith("file:")):
        return path_for(name, mode)
    parts = urlsplit(name)
    how = parse_qs(parts.query)
    if how.get("mode", [""])[0] in {"ro", "memory"} or "immutable" in how or not parts.path:
        return path
    place = os.fspath(path_for(unquote(parts.path), mode))
    return urlunsplit(("file", "", place, parts.query, ""))
