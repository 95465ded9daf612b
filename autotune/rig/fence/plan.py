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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

from autotune.machine.kernel_files import unescaped

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - shm_open(3) knows no other place
KERNELS_OWN = ("/proc", "/sys", "/dev")
# Programs connect to sockets in this folder, which does not work through an overlay.
SOCKETS = "/run"
MAX_DEPTH = 3  # how deep to look for folders that the user may write to, as in /mnt/group/user
# File systems of the kernel and of devices, which cannot hold a user's files
KERNEL_FILE_SYSTEMS = frozenset(
    (
        *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts"),
        *("devtmpfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore"),
        *("rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs"),
    )
)


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo; *root* is the folder of the file system that is mounted."""

    path: str
    file_system: str
    options: tuple[str, ...]
    super_options: tuple[str, ...] = ()
    root: str = "/"

    @property
    def is_writable(self) -> bool:
        """True if neither this mount nor its file system is read-only."""
        return "ro" not in self.options and "ro" not in self.super_options

    @property
    def holds_user_files(self) -> bool:
        """True unless it is a file system of the kernel or of devices."""
        return self.file_system not in KERNEL_FILE_SYSTEMS


def is_below(path: str, above: str) -> bool:
    """Tell whether a path lies below another one; a path is not below itself."""
    return path != above and PurePosixPath(path).is_relative_to(above)


def read_mounts(mountinfo: str) -> tuple[Mount, ...]:
    """Return the mounts that can be reached by their paths, parents before children.

    A mount is left out if a later one at the same path, or at a folder above it, hides it.
    """
    mounts: dict[int, tuple[int, Mount]] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, super_fields = before.split(" "), after.split(" ")
        if len(fields) > 5 and len(super_fields) > 2:
            mount = Mount(
                path=unescaped(fields[4]),
                file_system=super_fields[0],
                options=tuple(fields[5].split(",")),
                super_options=tuple(super_fields[2].split(",")),
                root=unescaped(fields[3]),
            )
            mounts[int(fields[0])] = int(fields[1]), mount
    inner: dict[int, list[int]] = {}
    for number, (parent, _) in mounts.items():
        inner.setdefault(parent, []).append(number)
    roots = [n for n, (parent, m) in mounts.items() if m.path == "/" and parent not in mounts]
    seen = [
        mount
        for number, (_, mount) in mounts.items()
        if not roots or _found_at(mount.path, roots[0], mounts, inner) == number
    ]
    return tuple(sorted(seen, key=lambda m: PurePosixPath(m.path).parts))


def _found_at(
    path: str,
    root: int,
    mounts: Mapping[int, tuple[int, Mount]],
    inner: Mapping[int, Sequence[int]],
) -> int:
    """Return the number of the mount that a path leads to.

    Walks as the kernel does: from the root mount, into the mount that lies nearest on the way,
    until no further mount lies on it.
    """
    here = root
    while True:
        on_the_way = [
            number
            for number in inner.get(here, ())
            if path == mounts[number][1].path or is_below(path, mounts[number][1].path)
        ]
        if not on_the_way:
            return here
        here = min(on_the_way, key=lambda number: len(mounts[number][1].path))


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
        path: The folder; for ``READ_ONLY`` it may also be a single file that is mounted.
        attached: Mounts inside of it, which its overlay hides and which are bound into it again.
    """

    cover: Cover
    path: str
    attached: tuple[str, ...] = ()


class Folders:
    """What the plan asks about folders, answered from this machine for the current user."""

    def is_folder(self, path: str) -> bool:
        """Tell whether a mount point is a folder; True if it cannot be looked at."""
        return not os.path.isfile(path)

    def is_own(self, path: str) -> bool:
        """Tell whether a folder belongs to this user and group, so that overlays can copy it."""
        status = os.stat(path)
        return (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())

    def inside(self, path: str) -> Sequence[str]:
        """Return the paths of the folders in a folder, without links; empty if unreadable."""
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

    Root's overlays may hide mounts and copy files of all owners. On the way *towards* paths, such
    as the working directory, the search for writable folders has no depth limit.
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
    """Plans one folder after the other."""

    mounts: tuple[str, ...]
    folders: Folders
    is_root: bool
    towards: tuple[str, ...]

    def cover(self, path: str, depth: int = 0) -> Iterator[Step]:
        """Yield the steps that cover a folder, as a whole or folder by folder."""
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
            if may_write:
                yield Step(Cover.REBUILT, path)
            else:
                holding = [m for m in self.mounts if m == path or is_below(path, m)]
                innermost = max(holding, key=lambda m: len(PurePosixPath(m).parts))
                yield Step(Cover.READ_ONLY, innermost)
            if may_write or depth < MAX_DEPTH or any(is_below(t, path) for t in self.towards):
                for folder in self.folders.inside(path):  # mounts are planned for themselves
                    is_left_alone = _is_kernels_own(folder) or folder in {*self.mounts, SOCKETS}
                    if not is_left_alone and self.folders.may_enter(folder):
                        yield from self.cover(folder, depth + 1)

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
