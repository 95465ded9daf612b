"""The seam at files where no overlay is available: what a trial changes is a copy, a *shadow*.

A file that the trial writes lies below the shadow folder under its full real path; a real file that
it deletes or renames is only noted as gone. Everything else is read at its real place. Before the
first change nothing is looked up at all.

Covered: ``open`` and the functions of ``os`` and ``shutil`` that take a path, and therefore
pathlib, glob, tempfile, logging, numpy, json and pickle; ``torch.save`` and ``torch.load``. Not
covered: C code of other libraries, and subprocesses. Landlock denies what they write. Two hard
links become two files, and an error names a path as it was resolved.

Whether a call raises is left to the kernel, which gets the path of the shadow. So a path through
something that is missing (``missing/../a``) or a file with a slash at its end is not refused here.
"""

from __future__ import annotations

import _io
import builtins
import errno
import io
import os
import posix  # its functions stay what they are; those of os are replaced
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Self

from autotune.inside.hubs.patches import Patches, Seam, StandIn
from autotune.inside.hubs.saving import Save, SaveListener

# Functions of os whose first argument is a path, by what they do to what lies there
READING = ("access", "getxattr", "listxattr", "lstat", "readlink", "stat", "statvfs")
CHANGING = ("chmod", "chown", "lchown", "removexattr", "setxattr", "truncate", "utime")
MAKING = ("mkdir", "mkfifo", "mknod")
OF_LINKS = ("lchown", "lstat", "readlink")  # they never follow a link at the end of the path
# What is written there sets a device or the kernel, and is not a file of the user's.
KERNELS_OWN = ("/dev", "/proc", "/sys")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
MAX_LINKS = 40  # that are followed in one path, as on Linux
# A rank does not copy a larger file that is opened with "r+": it is probably a memory-mapped data
# set, which programs only read.
MAX_COPIED_BYTES = 256 * 2**20
# Modules whose functions are replaced one by one, or that need the original ones
LEFT_ALONE = ("builtins", "io", "os", "posix", "shutil", "torch")
FUNCTIONS = {FunctionType, BuiltinFunctionType, StandIn}
Call = Callable[..., Any]


class Shadows:
    """Maps the paths that a trial uses to real files or their shadows, and makes the shadows.

    The replaced functions call it on any thread of the program. Paths called ``seen`` are absolute,
    with links resolved as the trial sees them.

    Args:
        is_shared: Whether other processes make shadows, too.
        is_lenient: Whether another rank changes the real files at any time, so that what exists
            there already, or no longer, raises nothing here.
    """

    def __init__(
        self,
        root: Path,
        open_places: Sequence[Path],
        *,
        is_shared: bool = False,
        is_lenient: bool = False,
    ) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._root = os.path.realpath(root)
        if any(os.path.realpath(place).startswith(f"{self._root}/") for place in open_places):
            raise ValueError("what lies among the shadows stands for another file")
        places = map(str, (*open_places, root, *KERNELS_OWN))
        self._open = tuple(os.path.realpath(place).rstrip("/") + "/" for place in places)
        self._gone: set[str] = set()  # deleted real files, and folders with all they contain
        self.is_used = is_shared
        self._is_lenient = is_lenient

    def here(self) -> str:
        """Return the working directory by the name that the program knows."""
        return self.named(posix.getcwd())

    def named(self, place: str) -> str:
        """Return the path that a shadow stands for; any other path is returned as it is."""
        if f"{place}/".startswith(f"{self._root}/"):
            return place.removeprefix(self._root) or "/"
        return place

    def resolve(self, path: Any, *, follow: bool = True, dir_fd: int | None = None) -> str:
        """Return a path as the trial sees it: absolute and without links."""
        number = path if isinstance(path, int) else dir_fd
        text = "." if isinstance(path, int) else os.fsdecode(path)
        if not text:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        start = self.here() if number is None else _place_of(number)
        todo, found, links = os.path.join(self.named(start), text).split("/")[::-1], "", 0
        while todo:
            part = todo.pop()
            if part in {"", ".", ".."}:
                found = found.rpartition("/")[0] if part == ".." else found
                continue
            found = f"{found}/{part}"
            target = _link(self.place(found)) if todo or follow else None
            if target is not None:
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                todo += target.split("/")[::-1]
                found = "" if target.startswith("/") else found.rpartition("/")[0]
        return found or "/"

    def is_open(self, seen: str) -> bool:
        """Tell whether changes at this path are real."""
        return f"{seen}/".startswith(self._open)

    def place(self, seen: str) -> str:
        """Return where the contents of a path are now."""
        if self.is_open(seen):
            return seen
        shadow = self._root + seen
        return shadow if _mode(shadow) or self._is_gone(seen) else seen

    def to_read(self, path: Any, *, follow: bool = True, dir_fd: int | None = None) -> str:
        """Return where to read a file."""
        return self.place(self.resolve(path, follow=follow, dir_fd=dir_fd))

    def to_enter(self, path: Any) -> str:
        """Return the folder to change into: the real one, if the trial still sees that.

        Code that the guard does not cover then finds its files in the working directory.
        """
        seen = self.resolve(path)
        is_real = stat.S_ISDIR(_mode(seen)) and not self._is_gone(seen)
        return seen if is_real else self.place(seen)

    def to_write(
        self, path: Any, *, follow: bool = True, dir_fd: int | None = None, keeps: bool = True
    ) -> str:
        """Return where to change a file: its shadow, which is copied from the real one first.

        Without *keeps* the present contents do not matter, and the shadow begins empty.
        """
        return self._to_write(self.resolve(path, follow=follow, dir_fd=dir_fd), keeps=keeps)

    def to_open(
        self,
        path: Any,
        *,
        is_new: bool,
        writes: bool,
        keeps: bool,
        may_map: bool,
        dir_fd: int | None = None,
    ) -> Any:
        """Return the path to give to open(2).

        With *may_map*, a large file is perhaps opened only to be mapped and read.
        """
        if is_new:
            return self.to_make(path, dir_fd=dir_fd)
        if writes:
            seen = self.resolve(path, dir_fd=dir_fd)
            return self._to_write(seen, keeps=keeps, may_map=may_map)
        return self.to_read(path, dir_fd=dir_fd) if path and self.is_used else path

    def to_make(self, path: Any, *, follow: bool = False, dir_fd: int | None = None) -> str:
        """Return where to make something that must not exist yet, not even as a broken link."""
        seen = self.resolve(path, follow=follow, dir_fd=dir_fd)
        if self._is_lenient and not self.is_open(seen) and not _mode(self._root + seen):
            return self._begin(seen)
        if _mode(self.place(seen)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return self._to_write(seen, keeps=False)

    def _to_write(self, seen: str, *, keeps: bool, may_map: bool = False) -> str:
        if self.is_open(seen) or _mode(self._root + seen):
            return self.place(seen)
        mode = 0 if self._is_gone(seen) else _mode(seen)
        may_stay = self._is_lenient and keeps and may_map and stat.S_ISREG(mode)
        if may_stay and posix.stat(seen).st_size > MAX_COPIED_BYTES:
            return seen
        shadow = self._begin(seen)
        if stat.S_ISDIR(mode):
            _make_folders(shadow)
        elif stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            with suppress(FileNotFoundError):  # another rank has moved it away meanwhile
                _copy(seen, shadow, keeps=keeps)
        elif mode:
            return seen  # a pipe or a device, where writing changes no file
        return shadow

    def _begin(self, seen: str) -> str:
        """Return where a shadow is to lie, in its folder."""
        parent = os.path.dirname(seen)
        if not self._is_lenient and not stat.S_ISDIR(posix.stat(self.place(parent)).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), seen)
        self.is_used = True
        _make_folders(self._root + parent)
        return self._root + seen

    def is_merged(self, seen: str) -> bool:
        """Tell whether a folder may hold other names than the real one."""
        hidden = (*self._gone, self._root)
        return self.place(seen) != seen or any(os.path.dirname(path) == seen for path in hidden)

    def names(self, seen: str) -> list[str]:
        """Return the names in a folder, without the deleted ones.

        The shadows' own folder is left out as well: who walked in to delete it would delete what
        the shadows stand for.
        """
        place = self.place(seen)
        names = set(posix.listdir(place))  # raises what the program expects
        if place != seen and stat.S_ISDIR(_mode(seen)) and not self._is_gone(seen):
            names |= set(posix.listdir(seen))
        at = seen.rstrip("/")
        if at == os.path.dirname(self._root):
            names.discard(os.path.basename(self._root))
        return [n for n in names if f"{at}/{n}" not in self._gone or _mode(f"{self._root}{at}/{n}")]

    def remove(self, path: Any, *, dir_fd: int | None = None, folder: bool = False) -> None:
        """Delete a file as unlink(2) does, or a folder as rmdir(2) does."""
        seen = self.resolve(path, follow=False, dir_fd=dir_fd)
        delete = posix.rmdir if folder else posix.unlink
        place = self.place(seen)
        mode = _mode(place)
        if not self.is_open(seen) and mode and (folder or stat.S_ISDIR(mode)):
            if stat.S_ISDIR(mode) != folder:
                number = errno.ENOTDIR if folder else errno.EISDIR
                raise OSError(number, os.strerror(number), path)
            if self.names(seen):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        if place != seen or self.is_open(seen):
            delete(place)
        elif not mode:
            posix.lstat(place)  # raises what the program expects; the real file is never deleted
        self._hide(seen)

    def remove_all(self, seen: str, remove: Callable[..., None]) -> None:
        """Delete a folder with all that it contains, of which another rank may delete a part."""
        self._hide(seen)  # first, so that the real contents are not walked
        remove(self._root + seen, ignore_errors=True)

    def rename(
        self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        """Rename a file, or copy a folder and delete the old one; a real source stays."""
        source = self.resolve(src, follow=False, dir_fd=src_dir_fd)
        target = self.resolve(dst, follow=False, dir_fd=dst_dir_fd)
        if self.is_open(source) and self.is_open(target):
            posix.rename(source, target)
            return
        place = self.place(source)
        is_folder = stat.S_ISDIR(posix.lstat(place).st_mode)
        if source == target:
            return
        if is_folder and target.startswith(f"{source}/"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), src)
        if _mode(self.place(target)) and (is_folder or stat.S_ISDIR(_mode(self.place(target)))):
            self.remove(target, folder=is_folder)
        if is_folder:
            shutil.copytree(source, target, symlinks=True)
            shutil.rmtree(source)
            return
        moved = self._to_write(target, keeps=False)
        if place == source or self.is_open(target):
            _copy(place, f"{moved}.part", keeps=True)
            posix.rename(f"{moved}.part", moved)
            self.remove(source)
        else:  # what has it open writes on to the renamed file
            posix.rename(place, moved)
            self._hide(source)

    def link(self, src: Any, dst: Any, **kwargs: Any) -> None:
        """Copy a file where the program makes a hard link."""
        target = self.to_make(dst, dir_fd=kwargs.get("dst_dir_fd"))
        source = self.to_read(src, follow=False, dir_fd=kwargs.get("src_dir_fd"))
        _copy(source, target, keeps=True)

    def symlink(self, src: Any, dst: Any, *_: Any, dir_fd: int | None = None, **__: Any) -> None:
        """Make a link among the shadows."""
        posix.symlink(os.fsdecode(src), self.to_make(dst, dir_fd=dir_fd))

    def _hide(self, seen: str) -> None:
        if not self.is_open(seen) and _mode(seen):
            self.is_used = True
            self._gone.add(seen)

    def _is_gone(self, seen: str) -> bool:
        while seen and self._gone:
            if seen in self._gone:
                return True
            seen = seen.rpartition("/")[0]
        return False


class GuardSeam(Seam, SaveListener):
    """Redirects what a trial does to files to shadows."""

    def __init__(self, files: Shadows) -> None:
        self._files = files
        self._patches = Patches()

    def install(self) -> None:
        """Replace the functions, also where imported modules hold them by name."""
        self._replace()
        replaced = {_io.open: builtins.open} | self._patches.replaced()
        for name, module in list(sys.modules.items()):
            if name not in LEFT_ALONE and isinstance(module, ModuleType):
                for attribute, value in list(vars(module).items()):
                    if type(value) in FUNCTIONS and value in replaced:
                        self._patches.replace(module, attribute, replaced[value])

    def _replace(self) -> None:
        files = self._files
        for names, place in (
            (READING, files.to_read),
            (CHANGING, files.to_write),
            (MAKING, files.to_make),
        ):
            for name in names:
                self._patches.replace(os, name, self._redirected(name, place))
        for name, by in (
            ("rename", files.rename),
            ("replace", files.rename),
            ("remove", files.remove),
            ("unlink", files.remove),
            ("rmdir", partial(files.remove, folder=True)),
            ("link", files.link),
            ("symlink", files.symlink),
        ):
            self._patches.replace(os, name, by)
        self._replace_opening()
        self._replace_folders()

    def before_save(self, save: Save) -> None:
        """Redirect a path that ``torch.save`` opens in C code, past ``open``."""
        if isinstance(save.where, (str, os.PathLike)):
            save.where = self._files.to_write(save.where, keeps=False)

    def place_to_load(self, path: Any) -> Any:
        """Return where a checkpoint is, which ``torch.load`` opens in C code."""
        return self._files.to_read(path) if self._files.is_used else path

    def place_to_open(self, path: Any, mode: str) -> Any:
        """Return the path to open: that of a shadow, for what the trial changes or has changed."""
        writes = bool(set(mode) & set("wa+"))
        is_new, keeps, may_map = "x" in mode, "w" not in mode, "r" in mode
        return self._files.to_open(path, is_new=is_new, writes=writes, keeps=keeps, may_map=may_map)

    def _redirected(self, name: str, place: Callable[..., str]) -> Call:
        original, files, is_reading = getattr(os, name), self._files, name in READING

        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            # an empty path, and before the first change every path, is for the kernel
            if _is_path(path) and path and (files.is_used or not is_reading):
                follow = kwargs.get("follow_symlinks", name not in (*OF_LINKS, *MAKING))
                found = place(path, follow=follow, dir_fd=kwargs.pop("dir_fd", None))
                path = os.fsencode(found) if isinstance(path, bytes) else found
            return original(path, *args, **kwargs)

        return call

    def _replace_opening(self) -> None:
        original, files = os.open, self._files

        def os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            is_new = bool(flags & os.O_CREAT and flags & os.O_EXCL)
            writes, keeps = bool(flags & WRITING), not flags & os.O_TRUNC
            may_map = bool(flags & os.O_RDWR) and not flags & os.O_APPEND
            path = files.to_open(
                path, is_new=is_new, writes=writes, keeps=keeps, may_map=may_map, dir_fd=dir_fd
            )
            return original(path, flags, mode, dir_fd=dir_fd)

        self._patches.replace(os, "open", os_open)

    def _replace_folders(self) -> None:
        files, scandir = self._files, os.scandir

        def listdir(path: Any = ".") -> list[Any]:
            path = "." if path is None else path
            names = files.names(files.resolve(path)) if files.is_used else posix.listdir(path)
            if isinstance(path, bytes):  # names() are str, and os.listdir answers bytes with bytes
                return [os.fsencode(name) for name in names]
            return names

        def scan(path: Any = ".") -> Any:
            path = "." if path is None else path
            seen = files.resolve(path) if files.is_used else ""
            # The entries of os.scandir have the paths of the place that is scanned, so it serves
            # only where that is the folder as the program has given it.
            if not seen or (not files.is_merged(seen) and _is_same(path, seen)):
                return scandir(path)
            given = "" if isinstance(path, int) else os.fspath(path)
            return _Scan([_Entry(seen, given, name) for name in listdir(path)])

        def chdir(path: Any) -> None:
            posix.chdir(files.to_enter(path) if _is_path(path) and files.is_used else path)

        self._patches.replace(os, "listdir", listdir)
        self._patches.replace(os, "scandir", scan)
        self._patches.replace(os, "chdir", chdir)
        self._patches.replace(os, "getcwd", files.here)
        self._patches.replace(os, "getcwdb", lambda: os.fsencode(files.here()))


class _Entry:
    """One entry of a folder that is partly a shadow, with the interface of ``os.DirEntry``.

    ``os.DirEntry`` cannot be constructed in Python. Unlike it, this one caches nothing.
    """

    def __init__(self, seen: str, given: Any, name: Any) -> None:
        self.name = name
        self.path = os.path.join(given, name) if given else name
        self._seen = os.path.join(seen, os.fsdecode(name))

    def __fspath__(self) -> Any:
        return self.path

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the status of the file, as ``os.stat`` does."""
        return os.stat(self._seen, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        """Return the inode number."""
        return self.stat(follow_symlinks=False).st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Tell whether it is a folder, or a link to one if links are followed."""
        return os.path.isdir(self._seen) and (follow_symlinks or not self.is_symlink())

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Tell whether it is a file, or a link to one if links are followed."""
        return os.path.isfile(self._seen) and (follow_symlinks or not self.is_symlink())

    def is_symlink(self) -> bool:
        """Tell whether it is a symbolic link."""
        return os.path.islink(self._seen)

    def is_junction(self) -> bool:
        """Return False: only Windows has junctions."""
        return False


class _Scan(Iterator[_Entry]):
    """What the replaced ``os.scandir`` returns, a context manager as the original's is."""

    def __init__(self, entries: list[_Entry]) -> None:
        self._entries = iter(entries)

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: no folder is open."""


def _is_path(path: Any) -> bool:
    """Tell whether this is a path, not a file descriptor or a type that the function refuses."""
    return isinstance(path, (str, bytes, os.PathLike))


def _mode(place: str) -> int:
    """Return the mode of a file, folder or link, which is not followed; 0 if there is nothing."""
    try:
        return posix.lstat(place).st_mode
    except OSError:
        return 0


def _is_same(path: Any, seen: str) -> bool:
    try:
        return os.path.samestat(posix.stat(path), posix.stat(seen))
    except OSError:
        return False


def _link(place: str) -> str | None:
    try:
        return posix.readlink(place)
    except OSError:
        return None


def _place_of(number: int) -> str:
    return posix.readlink(f"/proc/self/fd/{number}")


def _make_folders(folder: str) -> None:
    if not _mode(folder):
        _make_folders(os.path.dirname(folder))
        try:
            posix.mkdir(folder)
        except FileExistsError:  # another process has made it meanwhile
            return


def _copy(source: str, target: str, *, keeps: bool) -> None:
    status = posix.lstat(source)
    if stat.S_ISLNK(status.st_mode):
        if _mode(target):
            posix.unlink(target)
        posix.symlink(posix.readlink(source), target)
        return
    with io.FileIO(target, "w") as copy:
        if keeps:
            with io.FileIO(source) as original:
                shutil.copyfileobj(original, copy, 1 << 24)
    posix.chmod(target, stat.S_IMODE(status.st_mode))
    if keeps:
        posix.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
