"""Scratch folders: where the upper layers of a fence lie, how much they hold, how they go."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.errors import FenceError

PREFIX = "autotune-fence-"
NEW = "autotune-new-"
LOCK = "lock"
# Waits for the end of its input. The rigs of a search that was killed write for some seconds more.
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
MAX_SOCKET_FOLDER = 60  # of the 107 bytes of a socket's path, multiprocessing adds up to 40
FREE_SHARE = 0.10  # of what is free when a search begins: what its trials may write at a time


def candidates(scratch_dir: Path | None, run_dir: Path) -> tuple[Path, ...]:
    """Return where upper layers may lie, in the order in which the places are tried.

    Memory comes last: on some clusters and in most containers all else is a network file system or
    an overlay, neither of which can hold upper layers.
    """
    named = [scratch_dir] if scratch_dir is not None else []
    temporary = (Path(tempfile.gettempdir()), Path("/var/tmp"), Path("/dev/shm"))  # noqa: S108
    places = [*named, run_dir, *temporary]
    real = [Path(os.path.realpath(place)) for place in places]
    return tuple(p for p in dict.fromkeys(real) if p.is_dir() and os.access(p, os.W_OK | os.X_OK))


class Scratch:
    """A folder that only this user can enter, removed in the end.

    A small process waits for the end of this one and then removes the folder, in whatever way this
    one ends. Where that process is killed too, the lock tells the next search, also one in another
    container, that the folder is nobody's any more.

    Attributes:
        path: The folder.
    """

    def __init__(self, place: Path) -> None:
        sweep(place)
        new = Path(tempfile.mkdtemp(prefix=NEW, dir=place))
        self._lock = os.open(new / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        with suppress(OSError):  # some network file systems have no locks; nothing is swept there
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = new.with_name(PREFIX + new.name.removeprefix(NEW))
        new.rename(self.path)  # by this name a sweep finds it, locked
        self._remover = subprocess.Popen(
            ["/bin/sh", "-c", REMOVE_IN_THE_END, "autotune", str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def close(self) -> None:
        """Remove it; what cannot be removed at once is left to the process that waits for us."""
        remove(self.path)
        with suppress(subprocess.TimeoutExpired):
            self._remover.communicate(b"\n", timeout=REMOVER_S)
        os.close(self._lock)


def short_place() -> Path:
    """Return a folder for temporary files whose path leaves room for the names of sockets.

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
    """Remove the scratch folders of this user's searches that were killed."""
    for folder in place.glob(f"{PREFIX}*"):
        if not _is_ours(folder):
            continue
        try:
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:  # what is left of one whose removal was cut short
            with suppress(OSError):
                folder.rmdir()
            continue
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(folder)
        except OSError:
            pass  # its search is alive, or there are no locks here
        finally:
            os.close(lock)


def remove(folder: Path) -> None:
    """Remove a folder whatever modes its files have: the kernel leaves ``work/work`` closed.

    What vanishes or cannot be removed is passed over. A link is left alone, with what it leads to.
    """
    if folder.is_symlink():
        return
    for path, _, _ in os.walk(folder):
        with suppress(OSError):
            for inner in Path(path).iterdir():
                if stat.S_ISDIR(inner.lstat().st_mode):
                    inner.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _is_ours(folder: Path) -> bool:
    """Tell whether this is a folder of this user's, and no link."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


@dataclass(frozen=True)
class Room:
    """How much the trials may write to some scratch folders of one file system.

    Attributes:
        folders: The scratch folders.
        free_bytes: What was free on their file system at the start.
        max_bytes: What they may hold.
    """

    folders: tuple[Path, ...]
    free_bytes: int
    max_bytes: int

    def of(self, name: str) -> Room:
        """Return the room of the folders of this name in each of these: one view's."""
        return replace(self, folders=tuple(folder / name for folder in self.folders))

    def overflow(self) -> str | None:
        """Say what takes more room than there is; None while all is well.

        Reading what is free takes microseconds. Others may fill the disk too, so the folders are
        walked before they are blamed.
        """
        free = _free_bytes(self.folders[0].parent)
        if self.free_bytes - free <= self.max_bytes and free > self.max_bytes // 100:
            return None
        files = sorted(_files(self.folders), reverse=True)
        total = sum(size for size, _ in files)
        if total <= self.max_bytes and free > self.max_bytes // 100:
            return None
        size, path = files[0] if files else (0, self.folders[0])
        return (
            f"it wrote {_mib(total)} to files, of which {_mib(size)} to {path.name}; "
            f"{_mib(self.max_bytes)} are allowed"
        )


def rooms(folders: Sequence[Path], max_bytes: int | None) -> tuple[Room, ...]:
    """Return the rooms of scratch folders, one for each file system."""
    by_device: dict[int, list[Path]] = {}
    for folder in folders:
        by_device.setdefault(folder.stat().st_dev, []).append(folder)
    found = []
    for on_device in by_device.values():
        free = _free_bytes(on_device[0])
        allowed = int(FREE_SHARE * free) if max_bytes is None else max_bytes
        found.append(Room(tuple(on_device), free, allowed))
    return tuple(found)


def _files(folders: Iterable[Path]) -> Iterator[tuple[int, Path]]:
    for folder in folders:
        for path, _, names in os.walk(folder):
            for name in names:
                try:
                    status = os.lstat(os.path.join(path, name))  # noqa: PTH118
                except OSError:  # deleted meanwhile
                    continue
                yield status.st_blocks * 512, Path(path, name)


def _free_bytes(folder: Path) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
