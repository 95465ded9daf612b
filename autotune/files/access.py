"""Files: how autotune writes what it keeps for itself and what it makes for the user.

A reader sees the old file or the new one, also after a power loss, a full disk or a kill. Nothing
is written or read through a link that somebody else may have put there.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from contextlib import suppress
from io import BufferedReader, FileIO
from pathlib import Path

HOME = ".autotune"  # the folder in a project for what autotune keeps for itself
# In the first lines of each file that is made for the user: "Written by autotune export". A
# best.yaml has no word there
MARK = re.compile(r"Written by autotune\b(?: \w+)?")
MARKED_BYTES = 1024
# fsync(2), and what user-space file systems answer; a write that is lost is EIO or ENOSPC instead
CANNOT_SYNC = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}
MOST_LEFT_BYTES = 1 << 20  # a last message with a traceback of torch's has some 20 kB


def write(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """Write a file whole or not at all; missing folders above it are made.

    Args:
        path: The file. A link there is replaced by a file, and what it names stays as it is.
        content: Text is written in UTF-8.
        private: Only this user may read it, and enter the folders that are made. Otherwise it has
            the mode of the file that it replaces; a new one, that of the umask.

    Raises:
        OSError: It cannot be written; what was there before is as it was.
    """
    make_folder(path.parent, private=private)
    part = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.part")
    # Exclusive, so it is no link; the kernel applies the umask, which mkstemp() leaves out
    number = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
    try:
        with os.fdopen(number, "wb") as file:
            if not private and (before := _regular(path)) is not None:
                with suppress(PermissionError):  # a file system that shows one mode of all files
                    os.fchmod(number, stat.S_IMODE(before.st_mode))
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            _sync(number)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def read(path: Path, max_bytes: int, *, follows_link: bool = True) -> bytes:
    """Read a whole file that somebody else may have made.

    Raises:
        OSError: It is larger than *max_bytes*, or as ``opened()`` says.
    """
    with opened(path, follows_link=follows_link) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes / 1e6:g} MB", str(path))
    return content


def opened(path: Path, *, follows_link: bool = True) -> BufferedReader:
    """Open a file that somebody else may have made, to read it.

    Raises:
        OSError: It cannot be read, or is no file: to read a pipe or a device may last for ever.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if follows_link else os.O_NOFOLLOW)
    file = os.fdopen(os.open(path, flags), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return file


def read_left(path: Path) -> bytes | None:
    """Return the content of a file that a trial has left where it may write.

    None if there is none, or it is another thing than a trial of autotune's leaves.
    """
    try:
        return read(path, MOST_LEFT_BYTES, follows_link=False)
    except OSError:
        return None


def lines_left(path: Path, start: int) -> list[bytes]:
    """Return the whole lines that a trial has added to a file since it had *start* bytes.

    Of many, the first ones; none if there is no such file, or it is no file.
    """
    try:
        with opened(path, follows_link=False) as file:
            file.seek(start)
            return file.read(MOST_LEFT_BYTES).splitlines(keepends=True)
    except OSError:
        return []


def log_file(path: Path) -> FileIO:
    """Open a log that only this user reads, to append to it.

    Raises:
        OSError: It cannot be opened, or is a link.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o600), "ab", buffering=0)


def make_folder(folder: Path, *, private: bool = False) -> None:
    """Make a folder, and those above it that are missing; *private* ones only this user enters."""
    if folder.is_dir():
        return
    make_folder(folder.parent, private=private)
    folder.mkdir(mode=0o700 if private else 0o777, exist_ok=True)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a power loss; file systems that cannot are left alone."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _sync(number: int) -> None:
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise


def is_ours(path: Path, text: str) -> bool:
    """Return whether autotune wrote a file for the same purpose as a text, by their first lines.

    A link is nobody's.
    """
    try:
        with opened(path, follows_link=False) as file:
            theirs = MARK.search(file.read(MARKED_BYTES).decode(errors="replace"))
    except OSError:
        return False
    ours = MARK.search(text[:MARKED_BYTES])
    return theirs is not None and ours is not None and theirs[0] == ours[0]


def _regular(path: Path) -> os.stat_result | None:
    with suppress(OSError):
        status = path.lstat()
        return status if stat.S_ISREG(status.st_mode) else None
    return None
