"""Plain files: what is done to real and shadow files themselves, past what the guard replaces.

The functions of ``os`` that are used here are kept at import, because the guard replaces them for
the program.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

access, chmod, close, getcwd, link = os.access, os.chmod, os.close, os.getcwd, os.link
listdir, lstat, mkdir, open_number, readlink = os.listdir, os.lstat, os.mkdir, os.open, os.readlink
mkfifo, rename, rmdir, sendfile = os.mkfifo, os.rename, os.rmdir, os.sendfile
status_of, symlink, unlink, utime = os.stat, os.symlink, os.unlink, os.utime


def mode_of(path: str) -> int:
    """Return the mode of what is there, be it a link to nothing; 0 where nothing is."""
    try:
        return lstat(path).st_mode
    except OSError:
        return 0


def is_same(path: str, other: str, *, follow: bool = True) -> bool:
    """Tell whether two paths lead to the same file or folder; or link, where none is followed."""
    try:
        return os.path.samestat(
            status_of(path, follow_symlinks=follow), status_of(other, follow_symlinks=follow)
        )
    except OSError:
        return False


def copy_file(source: str, target: str, *, keeps: bool = True) -> None:
    """Copy a file with mode and times, a link or a pipe.

    Args:
        source: The file, or the link.
        target: Where the copy goes.
        keeps: What the file holds is wanted: else the copy is empty, and its times are new.
    """
    status = lstat(source)
    if stat.S_ISLNK(status.st_mode):
        with suppress(FileNotFoundError):
            unlink(target)
        symlink(readlink(source), target)
        return
    if stat.S_ISFIFO(status.st_mode):
        mkfifo(target, stat.S_IMODE(status.st_mode))
        return
    writing = open_number(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        if keeps:
            _send(source, writing)
    finally:
        close(writing)
    chmod(target, stat.S_IMODE(status.st_mode))
    if keeps:
        utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _send(source: str, writing: int) -> None:
    reading = open_number(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while sendfile(writing, reading, None, 1 << 24):
            pass
    finally:
        close(reading)


def make_like(shadow: str, root: str, real: str) -> None:
    """Make a shadow folder, and those above it, with the modes of the real ones."""
    if mode_of(shadow):
        return
    if real == "/" or not real:
        mkdir(root)
        return
    make_like(shadow.rpartition("/")[0], root, real.rpartition("/")[0])
    with suppress(FileExistsError):  # another process was faster
        mkdir(shadow)
    mode = mode_of(real)
    if mode:
        chmod(shadow, stat.S_IMODE(mode) | 0o700)


def remove_tree(folder: str) -> None:
    """Remove a folder with all that is in it, whatever their modes are."""
    chmod(folder, 0o700)
    for name in listdir(folder):
        inner = f"{folder}/{name}"
        if stat.S_ISDIR(lstat(inner).st_mode):
            remove_tree(inner)
        else:
            unlink(inner)
    rmdir(folder)
