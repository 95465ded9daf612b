"""The seam at files where no overlay is available: Python's own functions work on shadow files.

A shadow file is the copy of a file that a trial has changed, in a folder of the trial. The guard
redirects what the program writes to shadow files, and what it reads to them if they exist, so that
the program sees its changes and the user's files stay as they were.

Covered: ``open`` and the functions of ``os`` and ``shutil`` that take a path, and therefore
pathlib, glob, tempfile, logging, numpy, json and pickle; ``torch.save`` and ``torch.load``.

Not covered: files that other libraries write with their own C code; subprocesses; calls relative to
an open folder (``dir_fd``). If Landlock stands behind the guard, it denies such writes. Hard links
that exist before the trial are not covered either: what the trial writes by one name is not seen by
the other names.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

from autotune.inside.files import plain_files
from autotune.inside.files.shadow_files import ShadowFiles
from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.hubs.saving import Save, SaveListener

# Functions of os that read the file at a path, change it in place, or create it. They follow a link
# at the end of the path, except for those whose name says so and calls that pass follow_symlinks.
READING = ("getxattr", "listxattr", "stat", "statvfs")
READING_LINKS = ("lstat", "readlink")
CHANGING = ("removexattr", "setxattr", "truncate")
# These need the ownership of a file, not the permission to write it.
CHANGING_AS_OWNER = ("chmod", "chown", "lchown", "utime")
MAKING = ("mkdir", "mkfifo", "mknod")
# What is written there sets a device or the kernel, and is not a file of the user's.
KERNELS_OWN = (Path("/dev"), Path("/proc"), Path("/sys"))
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# The guard replaces the functions of these one by one, or (plain_files) needs the original ones.
OWN_MODULES = ("builtins", "io", "os", "posix", "shutil", "torch", plain_files.__name__)
Call = Callable[..., Any]


class GuardSeam(Seam, SaveListener):
    """Redirects what a trial does to files to its shadow files.

    ``SeamSet.guard_files()`` makes and installs it before the program runs in this process, if the
    fence is not an overlay. The replaced functions run on any thread of the program.

    Args:
        shadow_dir: The folder that holds the shadow files; it is created if it is missing.
        open_places: Folders that are not guarded, in which the program changes the real files:
            caches and its temporary files.
        is_shared: Other processes of the program use the same shadow files, so they must be looked
            at even before this process has changed anything.
    """

    def __init__(
        self, shadow_dir: Path, open_places: Sequence[Path], *, is_shared: bool = False
    ) -> None:
        shadow_dir.mkdir(parents=True, exist_ok=True)
        places = [*map(str, (*open_places, *KERNELS_OWN))]
        self.files = ShadowFiles(str(shadow_dir), places, is_shared=is_shared)
        self._patches = Patches()

    def install(self) -> None:
        """Replace the functions, also where imported modules hold them by name."""
        self._guard_open()
        for name in READING:
            self._replace(os, name, self._reading)
        self._replace(os, "access", lambda original: _or_not(self._reading(original)))
        for name in READING_LINKS:
            self._replace(os, name, self._reading_link)
        for name in (*CHANGING, *CHANGING_AS_OWNER):
            self._replace(os, name, self._changing)
        for name in MAKING:
            self._replace(os, name, self._making)
        self._guard_names()
        self._guard_folders()
        self._guard_here()
        self._guard_kept()

    def _guard_kept(self) -> None:
        """Replace the functions also in modules that have imported them by name.

        A module with ``from os import stat`` holds the original, whatever ``os.stat`` becomes.
        """
        replaced = self._patches.replaced()
        for name, module in list(sys.modules.items()):
            if name in OWN_MODULES or not isinstance(module, ModuleType):
                continue
            for attribute, value in list(vars(module).items()):
                try:
                    replacement = replaced.get(value)
                except TypeError:  # not hashable, hence not a function
                    continue
                if replacement is not None:
                    self._patches.replace(module, attribute, replacement)

    def place_of(self, path: str) -> str:
        """Return where the file lies that the program knows by this path: its shadow, if any."""
        return self.files.place(path)

    def _replace(self, owner: Any, name: str, by: Callable[[Call], Call]) -> None:
        self._patches.replace(owner, name, by(getattr(owner, name)))

    def _guard_open(self) -> None:
        original, original_os_open = builtins.open, os.open
        files = self.files

        def guarded_open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, (str, bytes, os.PathLike)):  # not an open file descriptor
                if "x" in mode:
                    file = files.place_to_create(file)
                elif set(mode) & set("wa+"):
                    file = files.place_for_writing(file, keeps="w" not in mode)
                else:
                    file = files.place(file)
            return original(file, mode, *args, **kwargs)

        def guarded_os_open(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            if kwargs.get("dir_fd") is None:
                if flags & os.O_CREAT and flags & os.O_EXCL:
                    path = files.place_to_create(path)
                elif flags & WRITING:
                    path = files.place_for_writing(path, keeps=not flags & os.O_TRUNC)
                else:
                    path = files.place(path)
            return original_os_open(path, flags, *args, **kwargs)

        for module in (builtins, io):  # pathlib opens by io.open
            self._patches.replace(module, "open", guarded_open)
        self._patches.replace(os, "open", guarded_os_open)

    def _reading(self, original: Call) -> Call:
        files = self.files

        def call(path: Any = None, *args: Any, **kwargs: Any) -> Any:
            if _is_path(path) and kwargs.get("dir_fd") is None:
                follow = kwargs.get("follow_symlinks", True)
                path = _as_given(path, files.place(path, follow=follow))
            return original(path, *args, **kwargs)

        return call

    def _reading_link(self, original: Call) -> Call:
        files = self.files

        def call(path: Any, **kwargs: Any) -> Any:
            if _is_path(path) and kwargs.get("dir_fd") is None:
                path = _as_given(path, files.place(path, follow=False))
            return original(path, **kwargs)

        return call

    def _changing(self, original: Call) -> Call:
        files, name = self.files, original.__name__

        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_path(path) and kwargs.get("dir_fd") is None:
                path = files.place_for_writing(
                    path,
                    keeps=True,
                    follow=kwargs.get("follow_symlinks", name != "lchown"),
                    as_owner=name in CHANGING_AS_OWNER,
                )
            return original(path, *args, **kwargs)

        return call

    def _making(self, original: Call) -> Call:
        files = self.files

        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_path(path) and kwargs.get("dir_fd") is None:
                path = files.place_to_create(path)
            return original(path, *args, **kwargs)

        return call

    def _guard_names(self) -> None:
        """Replace the functions that rename, link and remove."""
        files = self.files

        def symlink(src: Any, dst: Any, target_is_directory: bool = False) -> None:  # noqa: FBT001, FBT002 - as os has it
            make_link(src, files.place_to_create(dst), target_is_directory)

        make_link = os.symlink
        for name, guarded in (
            ("rename", files.rename),
            ("replace", files.rename),
            ("remove", files.remove),
            ("unlink", files.remove),
            ("rmdir", partial(files.remove, folder=True)),
            ("symlink", symlink),
            ("link", files.link),
        ):
            self._patches.replace(os, name, _unless_relative(getattr(os, name), guarded))
        self._replace(shutil, "rmtree", self._removing_tree)

    def _removing_tree(self, original: Call) -> Call:
        """Return an ``rmtree`` that removes a guarded folder from the trial's view only.

        Paths that are not folders are left to the original, which raises the errors that programs
        expect, or passes them to ``onerror`` or ``onexc``.
        """
        files = self.files

        def rmtree(
            path: Any,
            ignore_errors: Any = False,  # noqa: FBT002 - as shutil has it
            onerror: Call | None = None,
            **kwargs: Any,
        ) -> None:
            if kwargs.get("dir_fd") is not None or not _is_guarded_folder(files, path):
                original(path, ignore_errors, onerror, **kwargs)
                return
            try:
                files.remove_tree(path)
            except OSError as error:
                if ignore_errors:  # from here on as shutil does with its three options
                    return
                if kwargs.get("onexc") is not None:
                    kwargs["onexc"](os.rmdir, path, error)
                elif onerror is not None:
                    onerror(os.rmdir, path, sys.exc_info())
                else:
                    raise

        return rmtree

    def _guard_folders(self) -> None:
        files = self.files
        listdir, scandir = os.listdir, os.scandir

        def listed(path: Any = None) -> list[Any]:
            if isinstance(path, int):
                return listdir(path)
            given = "." if path is None else os.fspath(path)
            names = files.names(given)  # as str; os.listdir answers bytes with bytes
            return [os.fsencode(name) for name in names] if isinstance(given, bytes) else names

        def scanned(path: Any = None) -> Any:
            if isinstance(path, int):
                return scandir(path)
            given = "." if path is None else os.fspath(path)
            # The entries of os.scandir itself have the paths of the place that is scanned, so it
            # serves only where that is the folder as the program has given it.
            if not files.is_merged(given):
                text = os.fsdecode(given)
                place = files.place(given)
                if text == place or plain_files.is_same(text, place):
                    return scandir(path)
            return _Scan([_Entry(given, name) for name in listed(given)])

        for name, by in (("listdir", listed), ("scandir", scanned)):
            self._patches.replace(os, name, by)

    def _guard_here(self) -> None:
        """Replace the functions of the working directory.

        A folder that the trial has created exists only as a shadow. The process really enters that,
        but the program is told the path that it knows.
        """
        files = self.files
        chdir, getcwd = os.chdir, os.getcwd

        def change(path: Any) -> None:
            chdir(files.place_to_enter(path) if _is_path(path) else path)

        def here() -> str:
            return files.named(getcwd())

        self._patches.replace(os, "chdir", change)
        self._patches.replace(os, "getcwd", here)
        self._patches.replace(os, "getcwdb", lambda: os.fsencode(here()))

    def before_save(self, save: Save) -> None:
        """Redirect a path that ``torch.save`` opens in C code, past ``open``."""
        if save.is_to_path:
            save.where = self.files.place_for_writing(save.where, keeps=False)

    def place_to_load(self, path: Any) -> Any:
        """Return where a checkpoint is, which ``torch.load`` opens in C code."""
        return self.files.place(path)


class _Entry:
    """One entry of a folder that is partly a shadow, with the interface of ``os.DirEntry``.

    ``os.DirEntry`` cannot be constructed in Python. Unlike it, this one caches nothing: each method
    asks the guarded functions of ``os``, on the thread of the program that calls it.
    """

    def __init__(self, folder: Any, name: Any) -> None:
        self.name = name
        self.path = os.path.join(folder, name)  # both str or both bytes, as the folder was given

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the status of the file, as ``os.stat`` does."""
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        """Return the inode number."""
        return self.stat(follow_symlinks=False).st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Tell whether it is a folder, or a link to one if links are followed."""
        is_link = self.is_symlink()
        return os.path.isdir(self.path) and (follow_symlinks or not is_link)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Tell whether it is a file, or a link to one if links are followed."""
        is_link = self.is_symlink()
        return os.path.isfile(self.path) and (follow_symlinks or not is_link)

    def is_symlink(self) -> bool:
        """Tell whether it is a symbolic link."""
        return os.path.islink(self.path)

    def is_junction(self) -> bool:
        """Return False: only Windows has junctions."""
        return False


class _Scan(Iterator[_Entry]):
    """The iterator that the replaced ``os.scandir`` returns for a folder that is partly a shadow.

    Like the original it is a context manager, so ``with os.scandir(…)`` works.
    """

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
        """Do nothing; ``os.scandir``'s own iterator has a folder to close, this one has not."""


def _is_path(path: Any) -> bool:
    """Tell whether *path* is a path, not a file descriptor or a type that the function refuses."""
    return isinstance(path, (str, bytes, os.PathLike))


def _is_guarded_folder(files: ShadowFiles, path: Any) -> bool:
    try:
        real = files.real(path, follow=False)
    except OSError:
        return False
    return files.is_guarded(real) and files.is_folder(real)


def _or_not(ask: Call) -> Call:
    """Return *ask* so that it returns False instead of raising for a path that leads nowhere."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return ask(*args, **kwargs)
        except OSError:
            return False

    return call


def _unless_relative(original: Call, guarded: Call) -> Call:
    """Return *guarded*, but call *original* for paths relative to an open folder (``dir_fd``)."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if any(value is not None for name, value in kwargs.items() if name.endswith("dir_fd")):
            return original(*args, **kwargs)
        kept = {n: v for n, v in kwargs.items() if not n.endswith(("dir_fd", "follow_symlinks"))}
        return guarded(*args, **kept)

    return call


def _as_given(path: Any, place: str) -> Any:
    """Return *place* in the type of *path*, bytes or str.

    Some functions, such as ``os.readlink``, return the type that they were given.
    """
    return os.fsencode(place) if isinstance(path, bytes) else place
