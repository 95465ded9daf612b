"""The seam at files where no overlay is to be had: Python's own functions see and change shadows.

Covered: ``open`` and the functions of ``os`` and ``shutil`` that take a path, and so pathlib, glob,
tempfile, logging, numpy, json, pickle; ``torch.save`` and ``torch.load``. Not covered: what other
libraries write by their own C code, subprocesses, calls relative to an open folder (``dir_fd``).
With Landlock behind the guard these are denied where they write.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

import torch

from autotune.inside.seams.base import Patches
from autotune.inside.shadow_files import ShadowFiles

# Functions of os that read what a path names, and those that change it in place; each follows a
# link at the end unless it says otherwise.
READING = ("access", "chdir", "getxattr", "listxattr", "stat", "statvfs")
READING_LINKS = ("lstat", "readlink")
CHANGING = ("chmod", "chown", "removexattr", "setxattr", "truncate", "utime")
KERNELS_OWN = (Path("/dev"), Path("/proc"), Path("/sys"))
OWN_MODULES = ("builtins", "io", "os", "posix", "shutil", "torch", "autotune.inside.shadow_files")
Call = Callable[..., Any]


class GuardSeam:
    """Sends what a trial does to files to its shadow files.

    Args:
        shadow_dir: Where they lie.
        open_places: Folders in which the program may do as it likes: caches and its temporary
            files.
    """

    def __init__(self, shadow_dir: Path, open_places: Sequence[Path]) -> None:
        shadow_dir.mkdir(parents=True, exist_ok=True)
        self.files = ShadowFiles(str(shadow_dir), [*map(str, (*open_places, *KERNELS_OWN))])
        self._patches = Patches()

    def install(self) -> None:
        """Begin to guard."""
        self._guard_open()
        for name in READING:
            self._replace(os, name, self._reading)
        for name in READING_LINKS:
            self._replace(os, name, self._reading_link)
        for name in CHANGING:
            self._replace(os, name, self._changing)
        self._guard_names()
        self._guard_folders()
        self._guard_torch()
        self._guard_kept()

    def remove(self) -> None:
        """Put everything back as it was."""
        self._patches.undo()

    def _guard_kept(self) -> None:
        """Replace the functions also where modules that are imported already keep them by name."""
        replaced = self._patches.replaced()
        for name, module in list(sys.modules.items()):
            if name in OWN_MODULES or not isinstance(module, ModuleType):
                continue
            for attribute, value in list(vars(module).items()):
                try:
                    replacement = replaced.get(value)
                except TypeError:  # it has no hash, so it is no function
                    continue
                if replacement is not None:
                    self._patches.replace(module, attribute, replacement)

    def place_of(self, path: str) -> str:
        """Return where a file lies that the program knows by this path."""
        return self.files.place(path)

    def _replace(self, owner: Any, name: str, by: Callable[[Call], Call]) -> None:
        self._patches.replace(owner, name, by(getattr(owner, name)))

    def _guard_open(self) -> None:
        original, original_os_open = builtins.open, os.open
        files = self.files

        def guarded_open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, (str, bytes, os.PathLike)):
                if set(mode) & set("wax+"):
                    file = files.place_for_writing(os.fsdecode(file), keeps="w" not in mode)
                else:
                    file = files.place(os.fsdecode(file))
            return original(file, mode, *args, **kwargs)

        def guarded_os_open(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            if kwargs.get("dir_fd") is None:
                if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                    keeps = not flags & os.O_TRUNC
                    path = files.place_for_writing(os.fsdecode(path), keeps=keeps)
                else:
                    path = files.place(os.fsdecode(path))
            return original_os_open(path, flags, *args, **kwargs)

        for module in (builtins, io):  # pathlib opens by io.open
            self._patches.replace(module, "open", guarded_open)
        self._patches.replace(os, "open", guarded_os_open)

    def _reading(self, original: Call) -> Call:
        files = self.files

        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(path, int) and kwargs.get("dir_fd") is None:
                follow = kwargs.get("follow_symlinks", True)
                path = _as_given(path, files.place(os.fsdecode(path), follow=follow))
            return original(path, *args, **kwargs)

        return call

    def _reading_link(self, original: Call) -> Call:
        files = self.files

        def call(path: Any, **kwargs: Any) -> Any:
            if kwargs.get("dir_fd") is None:
                path = _as_given(path, files.place(os.fsdecode(path), follow=False))
            return original(path, **kwargs)

        return call

    def _changing(self, original: Call) -> Call:
        files = self.files

        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(path, int) and kwargs.get("dir_fd") is None:
                follow = kwargs.get("follow_symlinks", True)
                path = files.place_for_writing(os.fsdecode(path), keeps=True, follow=follow)
            return original(path, *args, **kwargs)

        return call

    def _guard_names(self) -> None:
        """Renames, links and removals."""
        files = self.files
        for name in ("rename", "replace"):
            self._replace(os, name, lambda original: _unless_relative(original, files.rename))
        for name in ("remove", "unlink"):
            self._replace(os, name, lambda original: _unless_relative(original, files.remove))
        self._replace(
            os,
            "rmdir",
            lambda original: _unless_relative(original, lambda p: files.remove(p, folder=True)),
        )
        self._replace(
            os,
            "symlink",
            lambda original: _unless_relative(
                original, lambda src, dst, *_, **__: files.link(os.fsdecode(src), dst)
            ),
        )
        self._replace(os, "link", lambda original: _unless_relative(original, files.copy_of))

        def rmtree(path: Any, *args: Any, **kwargs: Any) -> None:
            if kwargs.get("dir_fd") is not None:
                original(path, *args, **kwargs)
                return
            try:
                files.remove_tree(path)
            except OSError:
                if not (kwargs.get("ignore_errors") or (args and args[0])):
                    raise

        original = shutil.rmtree
        self._patches.replace(shutil, "rmtree", rmtree)

    def _guard_folders(self) -> None:
        files = self.files
        make, listdir, scandir = os.mkdir, os.listdir, os.scandir

        def mkdir(path: Any, mode: int = 0o777, **kwargs: Any) -> None:
            if kwargs.get("dir_fd") is not None:
                make(path, mode, **kwargs)
            else:
                files.make_folder(os.fsdecode(path), mode)

        def listed(path: Any = ".") -> list[Any]:
            if isinstance(path, int) or not _is_merged(files, path):
                return listdir(path)
            names = files.names(files.real(os.fsdecode(path)))
            return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

        def scanned(path: Any = ".") -> Any:
            if isinstance(path, int) or path is None or not _is_merged(files, path):
                return scandir(path)
            given = os.fsdecode(path)
            return _Scan([_Entry(given, name) for name in files.names(files.real(given))])

        for name, by in (("mkdir", mkdir), ("listdir", listed), ("scandir", scanned)):
            self._patches.replace(os, name, by)

    def _guard_torch(self) -> None:
        """Paths that torch hands to its C code."""
        original_save, original_load = torch.save, torch.load
        files = self.files

        def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(f, (str, os.PathLike)):
                f = files.place_for_writing(os.fspath(f), keeps=False)
            original_save(obj, f, *args, **kwargs)

        def load(f: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(f, (str, os.PathLike)):
                f = files.place(os.fspath(f))
            return original_load(f, *args, **kwargs)

        self._patches.replace(torch, "save", save)
        self._patches.replace(torch, "load", load)


class _Entry:
    """What ``os.scandir`` yields of a folder that is partly a shadow; it asks when it is asked."""

    def __init__(self, folder: str, name: str) -> None:
        self.name = name
        self.path = os.path.join(folder, name)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return its status."""
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        """Return its number."""
        return self.stat(follow_symlinks=False).st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Tell whether it is a folder."""
        is_link = self.is_symlink()
        return os.path.isdir(self.path) and (follow_symlinks or not is_link)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Tell whether it is a file."""
        is_link = self.is_symlink()
        return os.path.isfile(self.path) and (follow_symlinks or not is_link)

    def is_symlink(self) -> bool:
        """Tell whether it is a link."""
        return os.path.islink(self.path)

    def is_junction(self) -> bool:
        """There are none but on Windows."""
        return False


class _Scan(Iterator[_Entry]):
    """The iterator that ``os.scandir`` returns."""

    def __init__(self, entries: list[_Entry]) -> None:
        self._entries = iter(entries)

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """There is nothing to close."""


def _is_merged(files: ShadowFiles, path: Any) -> bool:
    real = files.real(os.fsdecode(path))
    return files.is_guarded(real) and files.is_merged(real)


def _unless_relative(original: Call, guarded: Call) -> Call:
    """Leave a call alone that is relative to open folders."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if any(value is not None for name, value in kwargs.items() if name.endswith("dir_fd")):
            return original(*args, **kwargs)
        kept = {n: v for n, v in kwargs.items() if not n.endswith(("dir_fd", "follow_symlinks"))}
        return guarded(*args, **kept)

    return call


def _as_given(path: Any, place: str) -> Any:
    """A path stays bytes where it was: some functions return what they were given."""
    return os.fsencode(place) if isinstance(path, bytes) else place
