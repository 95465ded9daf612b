"""Pictures of folders: what must not change while trials run."""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

Entry = tuple[int, int, int, int, str]  # mode, owner, links, time of change in ns, content


def picture(*folders: Path, leaving_out: tuple[str, ...] = ()) -> dict[str, Entry]:
    """Return names, modes, owners, links, times and contents of all that lies in folders.

    Args:
        folders: What is pictured.
        leaving_out: Paths that are left out, with all below them.
    """
    return {path: entry for folder in folders for path, entry in _walk(str(folder), leaving_out)}


def _walk(path: str, leaving_out: tuple[str, ...]) -> Iterator[tuple[str, Entry]]:
    if path in leaving_out:
        return
    status = os.lstat(path)
    is_folder = stat.S_ISDIR(status.st_mode)
    content = ""
    if stat.S_ISLNK(status.st_mode):
        content = os.readlink(path)
    elif stat.S_ISREG(status.st_mode):
        content = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    links = 0 if is_folder else status.st_nlink
    yield path, (status.st_mode, status.st_uid, links, status.st_mtime_ns, content)
    if is_folder:
        for inner in sorted(Path(path).iterdir()):
            yield from _walk(str(inner), leaving_out)
