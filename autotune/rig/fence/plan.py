"""Plan which folders to cover so that no file that the user may write to is left real.

An overlay covers one folder. ``/`` cannot be covered, so it becomes read-only and its folders are
covered one by one; root covers each of them as a whole. For an ordinary user the kernel sets two
limits:

- It refuses an overlay of a folder in which something is mounted, because the overlay would reveal
  the files that the mount hides. Such a folder is rebuilt from overlays of its inner folders.
- It cannot copy a folder of another owner, such as /var/tmp, to an upper layer. So the uppermost
  folders that the user may write to are covered, and everything above them becomes read-only. If a
  folder of another owner lies between a covered folder and the working directory, the part behind
  it is covered once more.

The plan is computed from a list of mounts and an object that answers questions about folders, so
it is tested without mounting anything.
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
# Programs connect to sockets in this folder, which does not work through an overlay.
SOCKETS = "/run"
MAX_DEPTH = 3  # how deep to look for folders that the user may write to, as in /mnt/group/user


class Cover(StrEnum):
    """The ways to keep a trial from changing a folder."""

    OVERLAY = "overlay"
    REBUILT = "rebuilt"  # a new folder, with overlays of the inner folders and copies of the files
    MEMORY = "memory"  # a new tmpfs, for shared memory
    READ_ONLY = "read-only"


@dataclass(frozen=True)
class Step:
    """One folder to cover.

    Attributes:
        cover: How to cover it.
        path: The folder; for ``READ_ONLY`` it may also be a single file that is mounted.
        attached: Mounts inside of it, which its overlay hides and which are bound into it again.
    """

    cover: Cover
    path: str
    attached: tuple[str, ...] = ()


class Folders(Protocol):
    """The questions that the plan asks about folders, for the user who runs the search."""

    def is_folder(self, path: str) -> bool:
        """Tell whether a mount point is a folder; containers also mount single files."""
        ...

    def is_own(self, path: str) -> bool:
        """Tell whether a folder belongs to this user and group, so that overlays can copy it."""
        ...

    def inside(self, path: str) -> Sequence[str]:
        """Return the paths of the folders in a folder, without links; empty if unreadable."""
        ...

    def may_enter(self, path: str) -> bool:
        """Tell whether this user can reach what lies in a folder."""
        ...

    def may_write(self, path: str) -> bool:
        """Tell whether this user can make files in a folder."""
        ...


class RealFolders:
    """Answers the questions from the file system of this machine, for the current user."""

    def is_folder(self, path: str) -> bool:
        """Tell whether a mount point is a folder; True if it cannot be looked at."""
        return not os.path.isfile(path)  # a try then shows whether it can be covered

    def is_own(self, path: str) -> bool:
        """Tell whether a folder belongs to this user and group."""
        status = os.stat(path)
        return (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())

    def inside(self, path: str) -> Sequence[str]:
        """Return the paths of the folders in a folder, in alphabetical order."""
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
    """Return which folders to cover, in the order in which to cover them.

    Args:
        mounts: The mounts that this process sees, parents before children.
        folders: Answers questions about the file system.
        is_root: Whether overlays may hide mounts and copy files of all owners.
        towards: Paths, such as the working directory, on the way to which the search for writable
            folders has no depth limit.
    """
    planner = _Planner(tuple(mount.path for mount in mounts), folders, is_root, tuple(towards))
    steps: list[Step] = []
    for mount in mounts:
        if mount.path == SHARED_MEMORY:
            steps.append(Step(Cover.MEMORY, mount.path))
        elif mount.is_writable and mount.holds_user_files and not _is_kernels_own(mount.path):
            steps += planner.cover(mount.path)
    # Upper layers are reached through these mounts, so they become read-only after all others.
    is_last = {Cover.READ_ONLY}
    return tuple(sorted(dict.fromkeys(steps), key=lambda step: step.cover in is_last))


def _is_kernels_own(path: str) -> bool:
    """Tell whether a path belongs to the kernel; nothing there is a file of the user's."""
    return any(path == own or is_below(path, own) for own in KERNELS_OWN)


@dataclass(frozen=True)
class _Planner:
    """Plans one folder after the other.

    Attributes:
        mounts: Paths of all mounts.
        folders: As for ``plan()``.
        is_root: As for ``plan()``.
        towards: As for ``plan()``.
    """

    mounts: tuple[str, ...]
    folders: Folders
    is_root: bool
    towards: tuple[str, ...]

    def cover(self, path: str, depth: int = 0) -> Iterator[Step]:
        """Yield the steps that cover a folder, as a whole or folder by folder.

        Args:
            path: The folder.
            depth: How deep the folder lies below the mount at which planning began.
        """
        inner = tuple(m for m in self.mounts if is_below(m, path))
        may_write = path != "/" and self.folders.may_write(path)
        if path == SOCKETS or is_below(path, SOCKETS) or not self.folders.is_folder(path):
            yield Step(Cover.READ_ONLY, path)
        elif path != "/" and (self.is_root or (may_write and not inner)):
            # Mounts are bound again together with all mounts inside of them, so the outermost are
            # enough.
            outermost = tuple(m for m in inner if not any(is_below(m, other) for other in inner))
            yield Step(Cover.OVERLAY, path, outermost)
            if not self.is_root:
                yield from self._cover_beyond_others(path)
        else:
            yield Step(Cover.REBUILT, path) if may_write else self._read_only(path)
            if may_write or depth < MAX_DEPTH or any(is_below(t, path) for t in self.towards):
                yield from self._cover_inside(path, depth)

    def _cover_beyond_others(self, path: str) -> Iterator[Step]:
        """Cover what lies behind a folder of another owner, within a covered folder.

        To write there the overlay would have to copy that folder, which it cannot.
        """
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
        """Cover the inner folders, except for mounts, which are planned for themselves."""
        for folder in self.folders.inside(path):
            is_left_alone = _is_kernels_own(folder) or folder in self.mounts
            is_left_alone = is_left_alone or folder == SOCKETS
            if not is_left_alone and self.folders.may_enter(folder):
                yield from self.cover(folder, depth + 1)

    def _read_only(self, path: str) -> Step:
        """Return the step that makes the whole mount of a path read-only."""
        return Step(Cover.READ_ONLY, _mount_of(path, self.mounts))


def _mount_of(path: str, mounts: Sequence[str]) -> str:
    """Return the path of the innermost mount that a path lies on."""
    holding = [m for m in mounts if m == path or is_below(path, m)]
    return max(holding, key=lambda m: len(PurePosixPath(m).parts))
