"""File operations that bypass the guard, for its own work on real and shadow files.

The guard replaces functions of ``os`` for the program. This module is imported before that and
keeps the original functions.
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
    """Return the mode of a file, folder or link, which is not followed; 0 if there is nothing."""
    try:
        return lstat(path).st_mode
    except OSError:
        return 0


def is_same(path: str, other: str, *, follow: bool = True) -> bool:
    """Return whether two paths lead to the same file or folder; False if either does not exist.

    Args:
        path: One path.
        other: The other path.
        follow: Follow a link at the end of either path; otherwise compare the links themselves.
    """
    try:
        return os.path.samestat(
            status_of(path, follow_symlinks=follow), status_of(other, follow_symlinks=follow)
        )
    except OSError:
        return False


def copy_file(source: str, target: str, *, keeps: bool = True) -> None:
    """Copy a file with its mode and times; a link is copied as a link, a pipe as a new pipe.

    Args:
        source: The file, the link or the pipe.
        target: Where the copy goes.
        keeps: Copy the contents. Otherwise the copy is empty and its times are new, for a file that
            is about to be overwritten.
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
    # private until it is complete, then with the source's mode
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
    """Copy a file's contents to an open file, inside the kernel."""
    reading = open_number(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while sendfile(writing, reading, None, 1 << 24):
            pass
    finally:
        close(reading)


def make_like(shadow: str, root: str, real: str) -> None:
    """Create a shadow folder and its parents, with the modes of the real folders.

    Args:
        shadow: The folder to create; nothing is done if it exists.
        root: The folder of all shadows, which is created if need be.
        real: The real folder that it stands for.
    """
    if mode_of(shadow):
        return
    if real == "/" or not real:
        mkdir(root)
        return
    make_like(shadow.rpartition("/")[0], root, real.rpartition("/")[0])
    with suppress(FileExistsError):  # another process has created it meanwhile
        mkdir(shadow)
    mode = mode_of(real)
    if mode:
        # the owner must be able to enter and change the shadow, whatever mode the real folder has
        chmod(shadow, stat.S_IMODE(mode) | 0o700)


def remove_tree(folder: str) -> None:
    """Remove a folder with all that it contains, even folders that their owner may not enter."""
    chmod(folder, 0o700)
    for name in listdir(folder):
        inner = f"{folder}/{name}"
        if stat.S_ISDIR(lstat(inner).st_mode):
            remove_tree(inner)
        else:
            unlink(inner)
    rmdir(folder)
