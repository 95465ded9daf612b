"""Which folders become overlays so that no writable file of the user's is left uncovered: pure.

An overlay covers one folder. ``/`` itself cannot be covered, so its folders are, one by one, and it
becomes read-only. Root covers each of these as a whole. For an ordinary user the kernel

- refuses an overlay of a folder in which something is mounted, because what lies below a mount
  would be seen: such a folder is rebuilt from overlays of its folders;
- cannot copy a folder of another owner to an upper layer, such as /var/tmp: so what is covered are
  the uppermost folders that the user may write to, and all above them becomes read-only. On the way
  to the working directory, what lies behind such a folder is covered once more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Protocol

from autotune.rig.fence.mounts import Mount, is_below

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - shm_open(3) knows no other place
KERNELS_OWN = ("/proc", "/sys", "/dev")
# Sockets that programs connect to lie here, and none connects through an overlay.
SOCKETS = "/run"
MAX_DEPTH = 3  # /mnt/group/user: how deep folders are looked for that the user may write to


class Cover(StrEnum):
    """How a folder is covered."""

    OVERLAY = "overlay"
    REBUILT = "rebuilt"  # a new folder: overlays of its folders, copies of its files
    MEMORY = "memory"  # a new, empty tmpfs
    READ_ONLY = "read-only"


@dataclass(frozen=True)
class Step:
    """One folder to cover.

    Attributes:
        attached: Mounts inside it that are attached again after an overlay hid them.
    """

    cover: Cover
    path: str
    attached: tuple[str, ...] = ()


class Folders(Protocol):
    """What the plan asks of the file system."""

    def is_folder(self, path: str) -> bool:
        """Tell whether a folder is mounted there; containers mount single files."""
        ...

    def is_own(self, path: str) -> bool:
        """Tell whether a folder is of this user and group, so that it can be copied."""
        ...

    def inside(self, path: str) -> Sequence[str]:
        """Return the paths of the folders in a folder, without links; none if it is unreadable."""
        ...

    def may_enter(self, path: str) -> bool:
        """Tell whether this user can reach what lies in a folder."""
        ...

    def may_write(self, path: str) -> bool:
        """Tell whether this user can make files in a folder."""
        ...


class RealFolders:
    """The folders of this machine, for this user."""

    def is_folder(self, path: str) -> bool:
        """Tell whether a folder is mounted there."""
        return not os.path.isfile(path)  # what cannot be looked at is tried

    def is_own(self, path: str) -> bool:
        """Tell whether a folder is of this user and group."""
        status = os.stat(path)
        return (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())

    def inside(self, path: str) -> Sequence[str]:
        """Return the paths of the folders in a folder."""
        try:
            with os.scandir(path) as entries:
                return sorted(e.path for e in entries if e.is_dir(follow_symlinks=False))
        except OSError:
            return ()

    def may_enter(self, path: str) -> bool:
        """Tell whether this user can reach what lies in a folder."""
        return os.access(path, os.X_OK)

    def may_write(self, path: str) -> bool:
        """Tell whether this user can make files in a folder."""
        return os.access(path, os.W_OK | os.X_OK)


def plan(
    mounts: Sequence[Mount], folders: Folders, *, is_root: bool, towards: Sequence[str] = ()
) -> tuple[Step, ...]:
    """Return the steps in the order in which they are taken.

    Args:
        mounts: Those that can be seen, parents before children.
        folders: The file system.
        is_root: Overlays may hide mounts, and files of all owners can be copied.
        towards: Paths near which folders are looked for that the user may write to, however deep.
    """
    planner = _Planner(tuple(mount.path for mount in mounts), folders, is_root, tuple(towards))
    steps: list[Step] = []
    for mount in mounts:
        if mount.path == SHARED_MEMORY:
            steps.append(Step(Cover.MEMORY, mount.path))
        elif mount.is_writable and mount.holds_user_files and not _is_kernels_own(mount.path):
            steps += planner.cover(mount.path)
    is_last = {Cover.READ_ONLY}  # upper layers are reached through mounts that are writable still
    return tuple(sorted(dict.fromkeys(steps), key=lambda step: step.cover in is_last))


def _is_kernels_own(path: str) -> bool:
    return any(path == own or is_below(path, own) for own in KERNELS_OWN)


@dataclass(frozen=True)
class _Planner:
    """Covers folder after folder; the arguments are those of ``plan()``."""

    mounts: tuple[str, ...]
    folders: Folders
    is_root: bool
    towards: tuple[str, ...]

    def cover(self, path: str, depth: int = 0) -> Iterator[Step]:
        """Cover a folder: as a whole, or folder by folder."""
        inner = tuple(m for m in self.mounts if is_below(m, path))
        may_write = path != "/" and self.folders.may_write(path)
        if path == SOCKETS or is_below(path, SOCKETS) or not self.folders.is_folder(path):
            yield Step(Cover.READ_ONLY, path)
        elif path != "/" and (self.is_root or (may_write and not inner)):
            # the innermost of nested mounts come back with the ones that hold them
            outermost = tuple(m for m in inner if not any(is_below(m, other) for other in inner))
            yield Step(Cover.OVERLAY, path, outermost)
            if not self.is_root:
                yield from self._cover_beyond_others(path)
        else:
            yield Step(Cover.REBUILT, path) if may_write else self._read_only(path)
            if may_write or depth < MAX_DEPTH or any(is_below(t, path) for t in self.towards):
                yield from self._cover_inside(path, depth)

    def _cover_beyond_others(self, path: str) -> Iterator[Step]:
        """Cover what lies in a covered folder behind folders of others, which cannot be copied."""
        for end in (t for t in self.towards if is_below(t, path)):
            way = [end, *(p for p in map(str, PurePosixPath(end).parents) if is_below(p, path))]
            for inner, folder in zip((None, *way), way, strict=False):  # from the end upwards
                if self.folders.is_own(folder):
                    continue
                if self.folders.may_write(folder):
                    yield Step(Cover.OVERLAY, folder)
                elif inner is not None:
                    yield Step(Cover.OVERLAY, inner)
                break

    def _cover_inside(self, path: str, depth: int) -> Iterator[Step]:
        for folder in self.folders.inside(path):
            is_left_alone = _is_kernels_own(folder) or folder in self.mounts
            is_left_alone = is_left_alone or folder == SOCKETS
            if not is_left_alone and self.folders.may_enter(folder):
                yield from self.cover(folder, depth + 1)

    def _read_only(self, path: str) -> Step:
        return Step(Cover.READ_ONLY, _mount_of(path, self.mounts))


def _mount_of(path: str, mounts: Sequence[str]) -> str:
    """Return the mount that a path lies on."""
    holding = [m for m in mounts if m == path or is_below(path, m)]
    return max(holding, key=lambda m: len(PurePosixPath(m).parts))
