"""Scratch folders, which hold what trials write: where they are, their limits, their removal.

They may hold gigabytes, so they must be removed in whatever way a search ends, SIGKILL included.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.errors import FenceError

PREFIX = "autotune-fence-"
NEW = "autotune-new-"  # while it is not locked yet, so that no sweep takes it for an abandoned one
LOCK = "lock"
# The remover waits for the end of its input, which comes when the search ends. It tries for 20 s,
# because the rigs of a search that was killed go on writing for some seconds.
REMOVE_IN_THE_END = """\
read -r _
for _ in $(seq 100); do
    [ -e "$1" ] || exit 0
    chmod -R u+rwx "$1"
    rm -rf "$1"
    sleep 0.2
done
"""
REMOVER_S = 1.0
MAX_SOCKET_FOLDER = 60  # a socket's path may have 107 bytes, of which multiprocessing uses up to 40
FREE_SHARE = 0.10  # the default limit, as a share of the disk space that is free at the start


def candidates(scratch_dir: Path | None, run_dir: Path) -> tuple[Path, ...]:
    """Return the writable folders that may hold upper layers, in the order in which to try them.

    ``/dev/shm`` comes last, because it takes memory. In most containers all else is a network file
    system or an overlay, and neither can hold upper layers.
    """
    named = [scratch_dir] if scratch_dir is not None else []
    temporary = (Path(tempfile.gettempdir()), Path("/var/tmp"), Path("/dev/shm"))  # noqa: S108
    places = [*named, run_dir, *temporary]
    real = [Path(os.path.realpath(place)) for place in places]
    return tuple(p for p in dict.fromkeys(real) if p.is_dir() and os.access(p, os.W_OK | os.X_OK))


class Scratch:
    """A folder that only this user can enter, and that is removed in any case.

    A small shell process waits until this process ends, in whatever way, and then removes the
    folder. If the shell is killed too, the next search removes it: the folder holds a locked file,
    and a lock that can be taken shows that nobody uses the folder. Locks also work between
    containers, in which process ids would mean nothing.

    Raises:
        OSError: when the folder cannot be made.
    """

    def __init__(self, place: Path) -> None:
        sweep(place)
        new = Path(tempfile.mkdtemp(prefix=NEW, dir=place))
        self._lock = os.open(new / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        with suppress(OSError):  # some network file systems have no locks; nothing is swept there
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = new.with_name(PREFIX + new.name.removeprefix(NEW))
        new.rename(self.path)  # only now does a sweep find it, and it is locked already
        self._remover = subprocess.Popen(
            ["/bin/sh", "-c", REMOVE_IN_THE_END, "autotune", str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def close(self) -> None:
        """Remove the folder; the shell process goes on with what cannot be removed at once."""
        remove(self.path)
        with suppress(subprocess.TimeoutExpired):
            self._remover.communicate(b"\n", timeout=REMOVER_S)
        os.close(self._lock)


def short_place() -> Path:
    """Return a writable folder for temporary files with a path short enough for sockets in it.

    Raises:
        FenceError: when there is none.
    """
    usual = Path(tempfile.gettempdir())
    for place in (usual, Path("/tmp"), Path("/var/tmp")):  # noqa: S108
        if len(os.fsencode(place)) <= MAX_SOCKET_FOLDER and os.access(place, os.W_OK | os.X_OK):
            return place
    raise FenceError(
        f"The folder for temporary files, {usual}, has too long a path: worker processes make "
        f"sockets there, whose paths the kernel limits. Set TMPDIR to one of at most "
        f"{MAX_SOCKET_FOLDER} characters."
    )


def sweep(place: Path) -> None:
    """Remove the scratch folders in a place that killed searches of this user have left.

    Folders whose search still runs, links, and folders of other users are left alone.
    """
    for folder in place.glob(f"{PREFIX}*"):
        try:
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:  # its removal was cut short, and the lock went first
            with suppress(OSError):
                folder.rmdir()
            continue
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(folder)
        except OSError:
            pass  # its search is running, or the file system has no locks
        finally:
            os.close(lock)


def remove(folder: Path) -> None:
    """Remove a folder and everything in it, whatever the modes of the folders inside are.

    Overlays leave a folder ``work/work`` that its owner may not enter. Entries that vanish
    meanwhile or cannot be removed are skipped. A link is not followed, and not removed.
    """
    if folder.is_symlink():
        return
    for path, _, _ in os.walk(folder):
        with suppress(OSError):
            for inner in Path(path).iterdir():
                if stat.S_ISDIR(inner.lstat().st_mode):
                    inner.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Room:
    """How much trials may write to scratch folders that share a file system.

    Attributes:
        free_bytes: Free space on their file system when the search began.
    """

    folders: tuple[Path, ...]
    free_bytes: int
    max_bytes: int

    def of(self, name: str) -> Room:
        """Return the same limit for one rig."""
        return replace(self, folders=tuple(folder / name for folder in self.folders))

    def overflow(self) -> str | None:
        """Return a sentence if the folders hold more than they may, or the disk is nearly full.

        Reading the free space takes microseconds, so that is done first. Other programs may also
        fill the disk: only a second look, at the files themselves, shows if these folders did.
        """
        free = _free_bytes(self.folders[0].parent)
        if self.free_bytes - free <= self.max_bytes and free > self.max_bytes // 100:
            return None
        files = []  # disk space in bytes, and path
        for folder in self.folders:
            for path, _, names in os.walk(folder):
                for one in (Path(path, name) for name in names):
                    with suppress(OSError):  # deleted meanwhile
                        files.append((one.lstat().st_blocks * 512, one))
        files.sort(reverse=True)
        total = sum(size for size, _ in files)
        if total <= self.max_bytes:
            is_full = free <= self.max_bytes // 100
            return f"{_mib(free)} are left on the disk that holds its files" if is_full else None
        size, largest = files[0] if files else (0, self.folders[0])
        return (
            f"it wrote {_mib(total)} to files, of which {_mib(size)} to {largest.name}; "
            f"{_mib(self.max_bytes)} are allowed"
        )


def rooms(folders: Sequence[Path], max_bytes: int | None) -> tuple[Room, ...]:
    """Return the limits for scratch folders, one for each file system."""
    by_device: dict[int, list[Path]] = {}
    for folder in folders:
        by_device.setdefault(folder.stat().st_dev, []).append(folder)
    found = []
    for on_device in by_device.values():
        free = _free_bytes(on_device[0])
        allowed = int(FREE_SHARE * free) if max_bytes is None else max_bytes
        found.append(Room(tuple(on_device), free, allowed))
    return tuple(found)


def _free_bytes(folder: Path) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
