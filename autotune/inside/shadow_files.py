"""Shadow files: the real files as a trial has changed them, kept below one folder.

A file that the trial writes lies below the shadow folder at its own path; one that it deletes is
noted as gone; all others are the real ones. So a source is never touched: what is renamed is copied
to the shadow under its new name, and noted as gone under the old one.

Paths in here are real ones: absolute, with links resolved as the trial sees them. The functions of
``os`` that are used here are kept at import, because the guard replaces them for the program.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress

MAX_LINKS = 40  # followed in one path, as Linux does
_lstat, _readlink, _listdir, _mkdir = os.lstat, os.readlink, os.listdir, os.mkdir
_unlink, _rmdir, _rename, _symlink, _getcwd = os.unlink, os.rmdir, os.rename, os.symlink, os.getcwd
_chmod, _utime, _open, _close, _sendfile = os.chmod, os.utime, os.open, os.close, os.sendfile


class ShadowFiles:
    """What a trial sees of files and folders.

    Args:
        root: The shadow folder.
        open_places: Folders that are no part of this: what is there is real.
    """

    def __init__(self, root: str, open_places: Sequence[str]) -> None:
        self.root = os.path.realpath(root)
        self._open = tuple(os.path.realpath(p).rstrip("/") + "/" for p in (*open_places, root))
        self._gone: set[str] = set()  # real files and folders, with all that is in them
        self._is_used = False

    def real(self, path: str | os.PathLike[str], *, follow: bool = True) -> str:
        """Return the real path of what the program names, links resolved as it sees them.

        Args:
            path: As the program gives it.
            follow: Also a link at its end is followed.
        """
        path = os.fsdecode(path)
        if not path.startswith("/"):
            path = f"{self.named(_getcwd())}/{path}"
        todo = [part for part in reversed(path.split("/")) if part not in {"", "."}]
        found, links = "", 0
        while todo:
            part = todo.pop()
            if part == "..":
                found = found.rpartition("/")[0]
                continue
            found = f"{found}/{part}"
            target = self._link(found) if todo or follow else None
            if target is None:
                continue
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            found = "" if target.startswith("/") else found.rpartition("/")[0]
            todo += [p for p in reversed(target.split("/")) if p not in {"", "."}]
        return found or "/"

    def named(self, path: str) -> str:
        """Return the path by which the program knows a place, which may be a shadow."""
        if path == self.root or path.startswith(f"{self.root}/"):
            return path.removeprefix(self.root) or "/"
        return path

    def is_guarded(self, real: str) -> bool:
        """Tell whether a path is a part of this."""
        return not f"{real}/".startswith(self._open)

    def place(self, path: str | os.PathLike[str], *, follow: bool = True) -> str:
        """Return where to read what the program names; of what is not there, where it would be."""
        if not self._is_used:
            return os.fsdecode(path)
        real = self.real(path, follow=follow)
        if not self.is_guarded(real):
            return os.fsdecode(path)
        return self._place(real)

    def place_for_writing(
        self, path: str | os.PathLike[str], *, keeps: bool, follow: bool = True
    ) -> str:
        """Return where to write; the folder it is in must exist for that, as ever.

        Args:
            path: As the program gives it.
            keeps: What the file holds is wanted.
            follow: A link is followed to the file.
        """
        real = self.real(path, follow=follow)
        if not self.is_guarded(real):
            return os.fsdecode(path)
        shadow = self.root + real
        before = self._place(real)
        if before != shadow and os.path.lexists(before):
            self._insist_on_writable(real)
        self._make_parents(real)
        if keeps and before != shadow and os.path.lexists(before):
            self._copy(real, real)
        return shadow

    def exists(self, real: str) -> bool:
        """Tell whether there is something, be it a link to nothing."""
        return _status(self._place(real)) is not None

    def is_folder(self, real: str) -> bool:
        """Tell whether there is a folder, and no link to one."""
        status = _status(self._place(real))
        return status is not None and stat.S_ISDIR(status.st_mode)

    def names(self, real: str) -> list[str]:
        """Return the names in a folder."""
        shadow, names = self.root + real, set()
        if self._place(real) != shadow or not self._is_gone(real):
            with suppress(FileNotFoundError, NotADirectoryError):
                names = {n for n in _listdir(real) if f"{real.rstrip('/')}/{n}" not in self._gone}
        with suppress(FileNotFoundError, NotADirectoryError):
            names |= set(_listdir(shadow))
        return sorted(names)

    def is_merged(self, real: str) -> bool:
        """Tell whether a folder is other than the real one."""
        return _status(self.root + real) is not None or any(
            gone.rpartition("/")[0] == real for gone in self._gone
        )

    def make_folder(self, path: str | os.PathLike[str], mode: int = 0o777) -> None:
        """Do what mkdir(2) does."""
        real = self.real(path, follow=False)
        if not self.is_guarded(real):
            _mkdir(path, mode)
            return
        if self.exists(real):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path))
        self._make_parents(real)
        _mkdir(self.root + real, mode)

    def remove(self, path: str | os.PathLike[str], *, folder: bool = False) -> None:
        """Do what unlink(2) does, or rmdir(2)."""
        real = self.real(path, follow=False)
        if not self.is_guarded(real):
            (_rmdir if folder else _unlink)(path)
            return
        if not self.exists(real):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        if self.is_folder(real) != folder:
            number = errno.ENOTDIR if folder else errno.EISDIR
            raise OSError(number, os.strerror(number), os.fspath(path))
        if folder and self.names(real):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), os.fspath(path))
        self._take_away(real)

    def remove_tree(self, path: str | os.PathLike[str]) -> None:
        """Remove a folder with all that is in it."""
        real = self.real(path, follow=False)
        if not self.is_folder(real):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(path))
        self._take_away(real)

    def rename(self, src: str | os.PathLike[str], dst: str | os.PathLike[str]) -> None:
        """Rename as the system does; a real source stays, and is not seen any more."""
        source, target = self.real(src, follow=False), self.real(dst, follow=False)
        if not self.is_guarded(source) and not self.is_guarded(target):
            _rename(src, dst)
            return
        if not self.exists(source):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(src))
        if source == target:
            return
        if target.startswith(f"{source}/"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), os.fspath(src))
        if self.exists(target):
            self._give_way(source, target)
        self._make_parents(target)
        if self.is_folder(source):
            self._copy_tree(source, target)
        else:
            self._copy(source, target)
        self._take_away(source)

    def link(self, text: str, path: str | os.PathLike[str]) -> None:
        """Make a symbolic link with this text."""
        real = self.real(path, follow=False)
        if not self.is_guarded(real):
            _symlink(text, path)
            return
        if self.exists(real):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path))
        self._make_parents(real)
        _symlink(text, self.root + real)

    def copy_of(self, src: str | os.PathLike[str], dst: str | os.PathLike[str]) -> None:
        """Make a copy in the place of a hard link."""
        source, target = self.real(src), self.real(dst, follow=False)
        if self.exists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(dst))
        self._make_parents(target)
        self._copy(source, target)

    def _place(self, real: str) -> str:
        shadow = self.root + real
        if _status(shadow) is not None or self._is_gone(real):
            return shadow
        return real

    def _is_gone(self, real: str) -> bool:
        return bool(self._gone) and any(part in self._gone for part in _upwards(real))

    def _link(self, real: str) -> str | None:
        place = self._place(real) if self._is_used else real
        try:
            return _readlink(place)
        except OSError:
            return None

    def _make_parents(self, real: str) -> None:
        """Make the shadow of the folder that something lies in; it must be seen to exist."""
        self._is_used = True
        parent = real.rpartition("/")[0] or "/"
        if not self.is_guarded(real):
            return
        if not self.is_folder(parent):
            number = errno.ENOTDIR if self.exists(parent) else errno.ENOENT
            raise OSError(number, os.strerror(number), real)
        _make_like(self.root + parent, self.root, parent)

    def _insist_on_writable(self, real: str) -> None:
        """What the program may not write is not written in a trial either."""
        if not os.access(real, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), real)

    def _give_way(self, source: str, target: str) -> None:
        if self.is_folder(target) != self.is_folder(source):
            number = errno.EISDIR if self.is_folder(target) else errno.ENOTDIR
            raise OSError(number, os.strerror(number), target)
        if self.is_folder(target) and self.names(target):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
        self._take_away(target)

    def _take_away(self, real: str) -> None:
        shadow = self._at(real)
        status = _status(shadow)
        if not self.is_guarded(real) or status is not None:
            if status is not None and stat.S_ISDIR(status.st_mode):
                _remove_tree(shadow)
            else:
                _unlink(shadow)
        if self.is_guarded(real):
            self._is_used = True
            self._gone = {g for g in self._gone if not g.startswith(f"{real}/")}
            if _status(real) is not None:
                self._gone.add(real)

    def _at(self, real: str) -> str:
        """Where this writes: the shadow, or the place itself among those that are open."""
        return self.root + real if self.is_guarded(real) else real

    def _copy(self, source: str, target: str) -> None:
        place = self._place(source) if self.is_guarded(source) else source
        copy_file(place, self._at(target))

    def _copy_tree(self, source: str, target: str) -> None:
        _mkdir(self._at(target))
        for name in self.names(source) if self.is_guarded(source) else _listdir(source):
            inner, copy = f"{source}/{name}", f"{target}/{name}"
            if self.is_folder(inner) if self.is_guarded(inner) else os.path.isdir(inner):
                self._copy_tree(inner, copy)
            else:
                self._copy(inner, copy)


def copy_file(source: str, target: str) -> None:
    """Copy a file with mode and times, or a link, by calls that nobody replaces."""
    status = _lstat(source)
    if stat.S_ISLNK(status.st_mode):
        with suppress(FileNotFoundError):
            _unlink(target)
        _symlink(_readlink(source), target)
        return
    reading = _open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writing = _open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            while _sendfile(writing, reading, None, 1 << 24):
                pass
        finally:
            _close(writing)
    finally:
        _close(reading)
    _chmod(target, stat.S_IMODE(status.st_mode))
    _utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _status(path: str) -> os.stat_result | None:
    try:
        return _lstat(path)
    except OSError:
        return None


def _upwards(real: str) -> Iterator[str]:
    while real:
        yield real
        real = real.rpartition("/")[0]


def _make_like(shadow: str, root: str, real: str) -> None:
    """Make a shadow folder, and those above it, with the modes of the real ones."""
    if _status(shadow) is not None:
        return
    if real == "/" or not real:
        os.makedirs(root, exist_ok=True)
        return
    _make_like(shadow.rpartition("/")[0], root, real.rpartition("/")[0])
    _mkdir(shadow)
    status = _status(real)
    if status is not None:
        _chmod(shadow, stat.S_IMODE(status.st_mode) | 0o700)


def _remove_tree(folder: str) -> None:
    for name in _listdir(folder):
        inner = f"{folder}/{name}"
        if stat.S_ISDIR(_lstat(inner).st_mode):
            _remove_tree(inner)
        else:
            _unlink(inner)
    _rmdir(folder)
