"""Mutes all ranks except the first, so that the program prints and writes files only once.

An ordinary script that trains as several ranks would write each of its files once per rank, to the
same path. Only the first rank does so. What the others write are shadows, as under the guard of a
trial, in a folder that is deleted afterwards, and each reads its own: as the ranks train one model,
its checkpoints hold what those of the first rank hold.

Covered: printed output and progress bars; experiment trackers; what the guard covers; the functions
in ``LIBRARIES``. Not covered: files that others write in C code.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.inside.hubs.after_import import AfterImport
from autotune.inside.seams.guard import GuardSeam, Shadows
from autotune.program.trackers import TRACKERS_OFF

# Functions that open a file in C code: position and name of its path, and the mode; without one,
# the argument after the path is the mode
LIBRARIES: dict[str, dict[str, tuple[int, str, str]]] = {
    "safetensors": {"serialize_file": (1, "filename", "w"), "safe_open": (0, "filename", "r")},
    "safetensors.torch": {"save_file": (1, "filename", "w"), "load_file": (0, "filename", "r")},
    "sqlite3": {"connect": (0, "database", "a")},
    "sqlite3.dbapi2": {"connect": (0, "database", "a")},
    "h5py": {"File.__init__": (1, "name", "")},
    "cv2": {"imwrite": (0, "filename", "w"), "imread": (0, "filename", "r")},
}
# Functions that fail where the first rank has made, moved or removed something meanwhile
CHANGING = ("rename", "replace", "remove", "unlink", "rmdir", "link", "symlink", "chmod", "utime")
IS_DONE = {errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY}


def mute_output() -> None:
    """Send all output of this process to /dev/null, except the error that ends it.

    Covers Python's stdout and stderr, the stdout of C code, trackers and tqdm. The traceback of an
    uncaught exception still goes to the real stderr.
    """
    nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open to the end
    os.dup2(nowhere.fileno(), 1)
    sys.stdout = sys.stderr = nowhere
    sys.excepthook = partial(traceback.print_exception, file=sys.__stderr__)
    os.environ.update(TRACKERS_OFF, TQDM_DISABLE="1")


class RankFilesSeam(GuardSeam):
    """Keeps a rank other than the first from writing where the first rank writes.

    Args:
        open_places: Folders in which the rank may write freely: caches and temporary files.
    """

    def __init__(self, shadow_dir: Path, open_places: Sequence[Path]) -> None:
        super().__init__(Shadows(shadow_dir, open_places, is_lenient=True))
        self._imports = AfterImport()

    def remove(self) -> None:
        """Put everything back as it was."""
        self._imports.remove()
        super().remove()

    def _replace(self) -> None:
        super()._replace()
        for name in CHANGING:
            self._patches.wrap(os, name, _leniently)
        self._patches.wrap(shutil, "copytree", _leniently)
        self._patches.wrap(shutil, "rmtree", self._remove_all)
        for module_name in LIBRARIES:
            self._imports.wait_for(module_name, self._redirect)

    def _remove_all(self, original: Callable[..., Any], path: Any, *args: Any, **named: Any) -> Any:
        seen = self._files.resolve(path, follow=False, dir_fd=named.get("dir_fd"))
        if self._files.is_open(seen):
            return original(path, *args, **named)
        return self._files.remove_all(seen, original)

    def _redirect(self, module: ModuleType) -> None:
        for path, (position, keyword, mode) in LIBRARIES[module.__name__].items():
            cls, _, name = path.rpartition(".")
            owner = getattr(module, cls) if cls else module
            self._patches.wrap(owner, name, partial(self._open, position, keyword, mode))

    def _open(
        self,
        position: int,
        keyword: str,
        mode: str,
        original: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        path = args[position] if len(args) > position else kwargs.get(keyword)
        # An empty path is a temporary database; others are SQLite's memory or its addresses
        text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        if not text or text.startswith((":", "file:")):
            return original(*args, **kwargs)
        how = mode or kwargs.get("mode") or (*args[position + 1 : position + 2], "")[0] or "r"
        place = self.place_to_open(path, how)
        if len(args) > position:
            return original(*args[:position], place, *args[position + 1 :], **kwargs)
        return original(*args, **{**kwargs, keyword: place})


def _leniently(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return original(*args, **kwargs)
    except OSError as error:
        if error.errno not in IS_DONE and not isinstance(error, shutil.Error):
            raise
    return None
