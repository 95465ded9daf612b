"""The seam at Python's loaders: the parent is told which files of the user's the program imports.

Each is told by its content when it is imported, which an edit a moment later does not change. All
ranks and all processes that they fork add to one file of the rig's folder. Not covered: what a
process imports that begins anew, such as a loader's worker by the start method ``spawn``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from pathlib import Path
from typing import Any

from autotune.files import access
from autotune.inside.code.frames import is_programs_file
from autotune.inside.hubs.patches import Patches, Seam
from autotune.program.sources import digest_of
from autotune.rig.wire import IMPORTED, Imported, encode


class SourcesSeam(Seam):
    """Adds a line, an ``Imported``, for each file of the program's, before it is imported.

    Args:
        shared: The rig's folder.
        apart: Folders with files of autotune's and of caches, which are not the user's.
    """

    def __init__(self, shared: Path, apart: Iterable[str]) -> None:
        self._path = shared / IMPORTED
        self._apart = tuple(f"{folder}{os.sep}" for folder in apart)
        self._told: set[str] = set()
        self._patches = Patches()

    def install(self) -> None:
        """Patch the loaders of modules and of extension modules."""
        self._patches.wrap(SourceFileLoader, "get_code", self._load)
        self._patches.wrap(ExtensionFileLoader, "create_module", self._load)

    def tell(self, path: str) -> None:
        """Tell of a file, unless it is told already or belongs to Python, a library or autotune."""
        file = os.path.abspath(path)  # noqa: PTH100 - a link stays what the program has imported
        if file in self._told or file.startswith(self._apart):
            return
        self._told.add(file)
        if is_programs_file(file) and (digest := digest_of(file)):
            with suppress(OSError), access.log_file(self._path) as told:
                told.write(encode(Imported(file, digest, os.stat(file).st_mtime_ns)))  # noqa: PTH116

    def _load(self, load: Callable[..., Any], loader: Any, *args: Any) -> Any:
        self.tell(loader.path)
        return load(loader, *args)
