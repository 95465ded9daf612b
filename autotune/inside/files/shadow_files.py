"""Shadow files: what a trial changes is kept below one folder, and the real files stay as they are.

A file that the trial writes lies below the shadow folder under its full real path. A file that it
deletes is noted as gone. All other files are read at their real place. A real file that is renamed
is copied to the shadow of its new name and noted as gone under the old one.

Arguments and results called ``real`` are absolute paths in which links are resolved as the trial
sees them.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress

from autotune.inside.files import plain_files

MAX_LINKS = 40  # that are followed in one path, as on Linux
Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class ShadowFiles:
    """Maps the paths that a trial uses to real files or their shadows, and changes the shadows.

    The guard seam holds one per process. The functions of ``os`` and others that it replaces call
    it, on any thread of the program. Until the first change, paths to read are returned as given,
    at no cost.

    Args:
        root: The shadow folder.
        open_places: Folders that are not guarded: changes there are real.
        is_shared: Other processes write to the same shadow folder, so that there may be shadows
            that this process has not made.
    """

    def __init__(self, root: str, open_places: Sequence[str], *, is_shared: bool = False) -> None:
        self.root = os.path.realpath(root)
        self._open = tuple(os.path.realpath(p).rstrip("/") + "/" for p in (*open_places, root))
        self._gone: set[str] = set()  # deleted real files, and folders with all they contain
        # until this is set no shadow exists, so paths need not be resolved
        self._is_used = is_shared

    def real(self, path: Path, *, follow: bool = True) -> str:
        """Return the absolute path of what the program names, with links resolved.

        Links are resolved as the trial sees them, so a shadow of a link counts. Only the last part
        of the path may be missing.

        Args:
            path: As the program gives it.
            follow: Follow a link at the end of the path, too.

        Raises:
            OSError: as the system would raise it, such as for a missing folder or too many links.
        """
        text = os.fsdecode(path)
        if not text:
            raise _error(errno.ENOENT, path)
        if not text.startswith("/"):
            text = f"{self.named(plain_files.getcwd())}/{text}"
        todo, found, mode, links = _parts(text), "", stat.S_IFDIR, 0
        while todo:
            if not stat.S_ISDIR(mode):
                raise self._refusal(found, path)
            part = todo.pop()
            if part in {".", ".."}:
                found = found.rpartition("/")[0] if part == ".." else found
                continue
            found = f"{found}/{part}"
            mode = self._mode(found)
            if stat.S_ISLNK(mode) and (todo or follow or text.endswith("/")):
                links += 1
                if links > MAX_LINKS:
                    raise _error(errno.ELOOP, path)
                target = plain_files.readlink(self._place(found))
                todo += _parts(target)
                found = "" if target.startswith("/") else found.rpartition("/")[0]
                mode = stat.S_IFDIR
        if text.endswith("/") and mode and not stat.S_ISDIR(mode):
            raise _error(errno.ENOTDIR, path)
        return found or "/"

    def named(self, path: str) -> str:
        """Return the path by which the program knows a place.

        A path below the shadow folder becomes the real path that it stands for; others stay.
        """
        if path == self.root or path.startswith(f"{self.root}/"):
            return path.removeprefix(self.root) or "/"
        return path

    def is_guarded(self, real: str) -> bool:
        """Return whether changes to a real path go to a shadow.

        Open places and the shadow folder itself are not guarded.
        """
        return not f"{real}/".startswith(self._open)

    def place(self, path: Path, *, follow: bool = True) -> str:
        """Return where to read what the program names.

        If there is nothing, it is the path where the file would be.
        """
        if not self._is_used:
            return os.fsdecode(path)
        real = self.real(path, follow=follow)
        return self._place(real) if self.is_guarded(real) else self._outside(path, real)

    def place_to_enter(self, path: Path) -> str:
        """Return the folder to change into: the real one if it still exists for the trial.

        Code that the guard does not cover then finds its files in the working directory.
        """
        if not self._is_used:
            return os.fsdecode(path)
        real = self.real(path)
        if (
            self.is_guarded(real)
            and stat.S_ISDIR(plain_files.mode_of(real))
            and not self._is_gone(real)
        ):
            return real
        return self.place(path)

    def place_for_writing(
        self, path: Path, *, keeps: bool, follow: bool = True, as_owner: bool = False
    ) -> str:
        """Return where to write a file, after copying the real one to its shadow if need be.

        Args:
            path: As the program gives it.
            keeps: The present contents matter; otherwise the shadow begins empty.
            follow: Follow a link at the end of the path to the file.
            as_owner: The change is one that the owner may make without write permission, such as
                chmod.

        Raises:
            OSError: when its folder does not exist, or the program may not write the real file.
        """
        real = self.real(path, follow=follow)
        if not self.is_guarded(real):
            return self._outside(path, real)
        shadow, mode = self.root + real, self._mode(real)
        if not mode:
            self._make_parents(real)
            return f"{shadow}/" if os.fsdecode(path).endswith("/") else shadow
        if self._place(real) == shadow:
            return shadow
        if not as_owner and not plain_files.access(real, os.W_OK):
            raise _error(errno.EACCES, path)  # a trial may not write it either
        if stat.S_ISDIR(mode):
            self._make_parents(f"{real}/")
        elif stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            self._make_parents(real)
            plain_files.copy_file(real, shadow, keeps=keeps)
        else:
            return real  # a pipe or a device, where writing changes no file
        return shadow

    def place_to_create(self, path: Path) -> str:
        """Return where to create something that must not exist yet, not even as a broken link.

        Raises:
            OSError: when it exists, or its folder does not.
        """
        real = self.real(path, follow=False)
        if not self.is_guarded(real):
            return self._outside(path, real)
        if self.exists(real):
            raise _error(errno.EEXIST, path)
        self._make_parents(real)
        return self.root + real

    def exists(self, real: str) -> bool:
        """Return whether the trial sees something at a path; a broken link counts."""
        return self._mode(real) != 0

    def is_folder(self, real: str) -> bool:
        """Return whether the trial sees a folder at a path; a link to a folder does not count."""
        return stat.S_ISDIR(self._mode(real))

    def is_merged(self, path: Path) -> bool:
        """Return whether a folder's contents may differ from those of the real folder.

        Then both it and its shadow must be read to list it.
        """
        if not self._is_used:
            return False
        real = self.real(path)
        return self.is_guarded(real) and (
            plain_files.mode_of(self.root + real) != 0
            or self._is_gone(real)
            or any(gone.rpartition("/")[0] == real.rstrip("/") for gone in self._gone)
        )

    def names(self, path: Path) -> list[str]:
        """Return the names in a folder as the trial sees it, without ``.`` and ``..``.

        Raises:
            OSError: as the system would raise it, such as for a missing folder.
        """
        if self.is_merged(path) and self.is_folder(real := self.real(path)):
            return self._names(real)
        return plain_files.listdir(self.place(path))

    def remove(self, path: Path, *, folder: bool = False) -> None:
        """Delete a file as unlink(2) does, or a folder as rmdir(2) does.

        Raises:
            OSError: as the system would raise it.
        """
        real = self.real(path, follow=False)
        if not self.is_guarded(real):
            (plain_files.rmdir if folder else plain_files.unlink)(self._outside(path, real))
            return
        if not self.exists(real):
            raise _error(errno.ENOENT, path)
        if self.is_folder(real) != folder:
            raise _error(errno.ENOTDIR if folder else errno.EISDIR, path)
        if folder and self._names(real):
            raise _error(errno.ENOTEMPTY, path)
        self._take_away(real)

    def remove_tree(self, path: Path) -> None:
        """Delete a folder with all that it contains; nothing happens if it does not exist."""
        self._take_away(self.real(path, follow=False))

    def rename(self, src: Path, dst: Path) -> None:
        """Rename a file or folder; a real source stays and is noted as gone.

        A target that exists is deleted first. What lies in the shadow folder alone is moved, so
        that a process that has it open writes on to the renamed file; everything else is copied.

        Raises:
            OSError: as rename(2) would raise it.
        """
        source, target = self.real(src, follow=False), self.real(dst, follow=False)
        if not self.is_guarded(source) and not self.is_guarded(target):
            plain_files.rename(self._outside(src, source), self._outside(dst, target))
            return
        if not self.exists(source):
            raise _error(errno.ENOENT, src)
        if source == target or plain_files.is_same(
            self._place(source), self._place(target), follow=False
        ):
            return
        # a folder cannot move into itself
        if target.startswith(f"{source}/"):
            raise _error(errno.EINVAL, src)
        if source.startswith(f"{target}/"):
            raise _error(errno.ENOTEMPTY, src)
        if self.exists(target):
            self._give_way(source, target)
        self._make_parents(target)
        if self._is_shadow_alone(source) and self.is_guarded(target):
            plain_files.rename(self.root + source, self.root + target)  # open files stay valid
        else:
            self._copy(source, target)
        self._take_away(source)

    def link(self, src: Path, dst: Path) -> None:
        """Make a hard link between shadows; a real source is copied to its shadow first.

        Between a guarded and an open place a copy is made instead.

        Raises:
            OSError: as the system would raise it.
        """
        source, target = self.real(src, follow=False), self.real(dst, follow=False)
        if not self.is_guarded(source) and not self.is_guarded(target):
            plain_files.link(self._outside(src, source), self._outside(dst, target))
            return
        for number, is_so in (
            (errno.ENOENT, not self.exists(source)),
            (errno.EEXIST, self.exists(target)),
            (errno.EPERM, self.is_folder(source)),
        ):
            if is_so:
                raise _error(number, src)
        self._make_parents(target)
        if not self.is_guarded(source) or not self.is_guarded(target):
            self._copy(source, target)
            return
        self._make_parents(source)
        if self._place(source) == source:
            self._copy(source, source)
        plain_files.link(self.root + source, self.root + target, follow_symlinks=False)

    def _place(self, real: str) -> str:
        """Return where a path's contents are now: at its shadow or at its real place."""
        shadow = self.root + real
        return shadow if plain_files.mode_of(shadow) or self._is_gone(real) else real

    def _mode(self, real: str) -> int:
        """Return the mode of what the trial sees at a path; 0 if it sees nothing."""
        mode = plain_files.mode_of(self.root + real)
        return mode if mode or self._is_gone(real) else plain_files.mode_of(real)

    def _outside(self, path: Path, real: str) -> str:
        """Return an unguarded path as the program gave it, or resolved if it would lead elsewhere.

        A relative path leads elsewhere while the working directory is a shadow.
        """
        text = os.fsdecode(path)
        here = "/" if text.startswith("/") else plain_files.getcwd()
        return text if self.named(here) == here else real

    def _refusal(self, real: str, path: Path) -> OSError:
        """Return the error for a path that continues after something that is not a folder."""
        try:
            plain_files.lstat(self._place(real))
        except OSError as error:
            return _error(error.errno or errno.ENOENT, path)
        return _error(errno.ENOTDIR, path)

    def _is_gone(self, real: str) -> bool:
        """Return whether the trial has deleted a real path or one of the folders above it."""
        return bool(self._gone) and any(part in self._gone for part in _upwards(real))

    def _is_shadow_alone(self, real: str) -> bool:
        """Return whether what the trial sees at a path lies in the shadow folder completely.

        A folder may be merged from a shadow and a real folder; then it must be copied to be moved.
        """
        mode = plain_files.mode_of(self.root + real) if self.is_guarded(real) else 0
        is_real_hidden = self._is_gone(real) or not plain_files.mode_of(real)
        return mode != 0 and (is_real_hidden or not stat.S_ISDIR(mode))

    def _names(self, real: str) -> list[str]:
        """Return the names in the real folder and in its shadow, without the deleted ones."""
        names: set[str] = set()
        if not self._is_gone(real):
            with suppress(FileNotFoundError, NotADirectoryError):
                at = real.rstrip("/")
                names = {n for n in plain_files.listdir(real) if f"{at}/{n}" not in self._gone}
        if self.is_guarded(real):
            with suppress(FileNotFoundError, NotADirectoryError):
                names |= set(plain_files.listdir(self.root + real))
        return sorted(names)

    def _make_parents(self, real: str) -> None:
        """Create the shadow of the folder that contains a path."""
        self._is_used = True
        if self.is_guarded(real):
            parent = real.rpartition("/")[0]
            plain_files.make_like(self.root + parent, self.root, parent)

    def _give_way(self, source: str, target: str) -> None:
        """Delete the target of a rename, or raise the error that rename(2) would raise for it."""
        if self.is_folder(target) != self.is_folder(source):
            raise _error(errno.EISDIR if self.is_folder(target) else errno.ENOTDIR, target)
        if self.is_folder(target) and self._names(target):
            raise _error(errno.ENOTEMPTY, target)
        self._take_away(target)

    def _take_away(self, real: str) -> None:
        """Delete a shadow if there is one, and note the real file or folder as gone."""
        shadow = self._at(real)
        mode = plain_files.mode_of(shadow)
        if stat.S_ISDIR(mode):
            plain_files.remove_tree(shadow)
        elif mode:
            plain_files.unlink(shadow)
        if self.is_guarded(real):
            self._is_used = True
            # the entry for a folder covers all below it
            self._gone = {g for g in self._gone if not g.startswith(f"{real}/")}
            if plain_files.mode_of(real):
                self._gone.add(real)

    def _at(self, real: str) -> str:
        """Return where to write a path: its shadow, or the path itself if it is not guarded."""
        return self.root + real if self.is_guarded(real) else real

    def _copy(self, source: str, target: str) -> None:
        """Copy a file, or a folder with all that the trial sees in it, to a new real path."""
        place = self._place(source)
        if not self.is_folder(source):
            plain_files.copy_file(place, self._at(target))
            return
        plain_files.mkdir(self._at(target))
        for name in self._names(source):
            self._copy(f"{source}/{name}", f"{target}/{name}")
        plain_files.chmod(self._at(target), stat.S_IMODE(plain_files.mode_of(place)))


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), os.fspath(path))


def _parts(path: str) -> list[str]:
    """Return the parts of a path in reverse order, so that ``pop()`` takes the first one."""
    return [part for part in reversed(path.split("/")) if part]


def _upwards(real: str) -> Iterator[str]:
    """Yield a path and all folders above it, except the root."""
    while real:
        yield real
        real = real.rpartition("/")[0]
