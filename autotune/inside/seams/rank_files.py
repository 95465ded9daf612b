"""Mutes all ranks except the first, so that the program prints and writes files only once.

An ordinary script that trains as several ranks would write each of its files once per rank, to the
same path. Only the first rank does so. Each of the others writes shadow files, in a folder that is
deleted afterwards, and reads its own: as the ranks train one model, its checkpoints hold what those
of the first rank hold.

Covered: printed output and progress bars; experiment trackers; ``torch.save``; ``open`` and so
numpy, json, pickle, logging and TensorBoard; renaming, copying, linking and removing files; making
folders; the libraries in ``LIBRARIES``. Not covered: files that others write in C code; what a
folder lists.
"""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.inside.hubs.after_import import AfterImport
from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.hubs.saving import Save, SaveListener
from autotune.program.trackers import TRACKERS_OFF

# A larger file that is opened for change is not copied to a shadow but opened itself: it is
# probably a memory-mapped data set, which programs open with "r+" and only read.
MAX_COPIED_BYTES = 256 * 2**20
KERNELS_OWN = (Path("/dev"), Path("/proc"), Path("/sys"))
# Functions that open a file in C code: position and name of its path, and the mode; without one,
# the argument after the path is the mode
LIBRARIES: dict[str, dict[str, tuple[int, str, str]]] = {
    "safetensors": {"serialize_file": (1, "filename", "w"), "safe_open": (0, "filename", "r")},
    "safetensors.torch": {"save_file": (1, "filename", "w"), "load_file": (0, "filename", "r")},
    "sqlite3": {"connect": (0, "database", "a")},
    "h5py": {"File.__init__": (1, "name", "")},
    "cv2": {"imwrite": (0, "filename", "w"), "imread": (0, "filename", "r")},
}


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


class RankFilesSeam(Seam, SaveListener):
    """Keeps a rank other than the first from writing where the first rank writes.

    ``FenceSeams.silence()`` installs it before the program starts. The replaced functions run on
    whatever thread the program uses. The first rank may make, move or remove the same files at any
    time, so what exists already, or no longer, raises nothing here.

    Args:
        open_places: Folders in which the rank may write freely: caches and temporary files.
    """

    def __init__(self, shadow_dir: Path, open_places: Sequence[Path]) -> None:
        shadow_dir.mkdir(parents=True, exist_ok=True)
        self._root = os.path.realpath(shadow_dir)
        places = (*open_places, shadow_dir, *KERNELS_OWN)
        self._open = tuple(os.path.realpath(place) + os.sep for place in places)
        self._imports = AfterImport()
        self._patches = Patches()

    def install(self) -> None:
        """Replace the functions of Python, torch and some libraries that write files."""
        self._patches.replace(os, "stat", self._reading(os.stat))
        unlink, rmdir, move, link = os.unlink, os.rmdir, os.replace, os.symlink
        remove_all, copy_all = shutil.rmtree, shutil.copytree

        def rename(shadow: str, src: Any, _dst: Any) -> None:
            if os.path.isdir(shadow):
                remove_all(shadow)
            source = self.place(src)
            if self._shadow(source):  # the first rank's, which moves it
                shutil.copyfile(source, shadow)
            else:
                move(source, shadow)

        def symlink(shadow: str, src: Any, dst: Any, *_: Any) -> None:
            if os.path.lexists(shadow):
                unlink(shadow)
            link(os.path.join(os.path.dirname(os.path.abspath(dst)), src), shadow)

        for owner, name, at, act in (
            (os, "mkdir", 0, lambda shadow, *_: os.makedirs(shadow, exist_ok=True)),
            (os, "remove", 0, lambda shadow, *_: unlink(shadow)),
            (os, "unlink", 0, lambda shadow, *_: unlink(shadow)),
            (os, "rmdir", 0, lambda shadow, *_: rmdir(shadow)),
            (os, "rename", 1, rename),
            (os, "replace", 1, rename),
            (os, "symlink", 1, symlink),
            (os, "link", 1, lambda shadow, src, *_: shutil.copyfile(self.place(src), shadow)),
            (shutil, "rmtree", 0, lambda shadow, *_: remove_all(shadow)),
            (
                shutil,
                "copytree",
                1,
                lambda shadow, src, *_: copy_all(self.place(src), shadow, dirs_exist_ok=True),
            ),
            (shutil, "copymode", 1, lambda *_: None),
            (shutil, "copystat", 1, lambda *_: None),
        ):
            guarded = self._on_shadow(getattr(owner, name), at, act)
            self._patches.replace(owner, name, guarded)
        for module_name in LIBRARIES:
            self._imports.wait_for(module_name, self._redirect)

    def remove(self) -> None:
        """Put everything back as it was."""
        self._imports.remove()
        self._patches.undo()

    def place(self, path: Any, mode: str = "r") -> Any:
        """Return the path to open: the shadow, if this rank has written one or is about to.

        Args:
            path: As the program gives it; other things than paths are returned unchanged.
        """
        if not isinstance(path, str | os.PathLike) or not (shadow := self._shadow(path)):
            return path
        if os.path.islink(shadow):
            return self.place(os.readlink(shadow), mode)
        if os.path.exists(shadow):
            return shadow
        if not set(mode) & set("wax+"):
            return path
        if "w" not in mode and os.path.isfile(path):
            if os.path.getsize(path) > MAX_COPIED_BYTES:
                return path
            os.makedirs(os.path.dirname(shadow), exist_ok=True)
            shutil.copyfile(path, shadow)
        os.makedirs(os.path.dirname(shadow), exist_ok=True)
        return shadow

    def before_save(self, save: Save) -> None:
        """Redirect a path that ``torch.save`` opens in C code."""
        if save.is_to_path:
            save.where = self.place(save.where, "w")

    def place_to_load(self, path: Any) -> Any:
        """Return where a checkpoint is, which ``torch.load`` opens in C code."""
        return self.place(path)

    def place_to_open(self, path: Any, mode: str) -> Any:
        """Return the path to open."""
        return self.place(path, mode)

    def _shadow(self, path: Any) -> str:
        """Return where the shadow of a path lies; empty where the rank may write freely."""
        folder, name = os.path.split(os.path.abspath(os.fsdecode(path)))
        real = os.path.join(os.path.realpath(folder), name)
        if f"{real}{os.sep}".startswith(self._open):
            return ""
        return self._root + real

    def _reading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def read(path: Any, **kwargs: Any) -> Any:
            is_plain = kwargs.get("dir_fd") is None and kwargs.get("follow_symlinks", True)
            return original(self.place(path) if is_plain else path, **kwargs)

        return read

    def _on_shadow(
        self, original: Callable[..., Any], at: int, act: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return a function that acts on the shadow of one of its arguments, if it has one.

        Args:
            original: Acts where the rank may write freely, and relative to open folders.
            at: Position of the path that it changes.
            act: Gets the shadow and the positional arguments. Files that are missing are no error:
                the first rank may have taken them away, or not have made them yet.
        """

        def call(*args: Any, **kwargs: Any) -> Any:
            is_relative = any(
                kwargs.get(f"{end}dir_fd") is not None for end in ("", "src_", "dst_")
            )
            shadow = "" if is_relative or len(args) <= at else self._shadow(args[at])
            if not shadow:
                return original(*(self.place(arg) for arg in args[:at]), *args[at:], **kwargs)
            os.makedirs(os.path.dirname(shadow), exist_ok=True)
            with suppress(OSError):
                act(shadow, *args)
            return args[at]

        return call

    def _redirect(self, module: ModuleType) -> None:
        for path, (position, keyword, mode) in LIBRARIES[module.__name__].items():
            cls, _, name = path.rpartition(".")
            owner = getattr(module, cls) if cls else module
            opening = self._opening(getattr(owner, name), position, keyword, mode)
            self._patches.replace(owner, name, opening)

    def _opening(
        self, original: Callable[..., Any], position: int, keyword: str, mode: str
    ) -> Callable[..., Any]:
        def opening(*args: Any, **kwargs: Any) -> Any:
            path = args[position] if len(args) > position else kwargs.get(keyword)
            if str(path).startswith((":", "file:")):  # SQLite's memory, or its addresses
                return original(*args, **kwargs)
            how = mode or kwargs.get("mode") or (*args[position + 1 : position + 2], "r")[0]
            place = self.place(path, how)
            if len(args) > position:
                return original(*args[:position], place, *args[position + 1 :], **kwargs)
            return original(*args, **{**kwargs, keyword: place} if keyword in kwargs else kwargs)

        return opening
