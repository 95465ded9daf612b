"""Files that libraries write by C code, past Python's ``open``: which argument names them.

numpy, PIL, pickle and json open files by Python's own ``open`` and need no row here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

from autotune.inside.seams.base import Patches

PathFor = Callable[[str, str], Any]
"""Returns what to open in the place of a path, by a mode as ``open`` has it."""


@dataclass(frozen=True)
class FileCall:
    """A function of a library that opens a file.

    Attributes:
        module: Where it is looked up.
        name: It, or a class whose constructor it is.
        position: Of the path among its arguments.
        keyword: Of the path.
        mode: As ``open`` has it; of a function with modes of its own, what it is without one.
        has_mode: The argument after the path is a mode.
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
    """Have a library open what *path_for* returns.

    Args:
        call: Its function.
        module: Where that is, imported.
        path_for: Says what to open.
        patches: Undone in the end.
    """
    found = getattr(module, call.name, None)
    if found is None:
        return
    is_class = call.has_mode  # whose instances are told by their class
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
    """Return arguments with another path in the place of the program's."""
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
    """Return what to open; what is no file of this machine's is left as it is."""
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
