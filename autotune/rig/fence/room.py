"""Where the scratch folders of a fence may be, and how much trials may write to them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.files.scratch import walk

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
        files = []  # disk space in bytes, and name
        for folder in self.folders:
            for _, _, names, above in walk(folder):
                for name in names:
                    with suppress(OSError):  # deleted meanwhile
                        status = os.stat(name, dir_fd=above, follow_symlinks=False)
                        files.append((status.st_blocks * 512, name))
        files.sort(reverse=True)
        total = sum(size for size, _ in files)
        if total <= self.max_bytes:
            is_full = free <= self.max_bytes // 100
            return f"{_mib(free)} are left on the disk that holds its files" if is_full else None
        size, largest = files[0] if files else (0, "none")
        return (
            f"it wrote {_mib(total)} to files, of which {_mib(size)} to {largest}; "
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
