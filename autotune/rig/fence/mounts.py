"""Read the mounts that this process sees, from /proc/self/mountinfo (proc_pid_mountinfo(5))."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

# File systems of the kernel and of devices, which cannot hold a user's files.
KERNEL_FILE_SYSTEMS = frozenset(
    {
        "autofs",
        "binfmt_misc",
        "bpf",
        "cgroup",
        "cgroup2",
        "configfs",
        "debugfs",
        "devpts",
        "devtmpfs",
        "efivarfs",
        "fusectl",
        "hugetlbfs",
        "mqueue",
        "nsfs",
        "proc",
        "pstore",
        "rpc_pipefs",
        "securityfs",
        "selinuxfs",
        "sysfs",
        "tracefs",
    }
)


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo.

    Attributes:
        path: Folder, or single file, at which it is mounted.
        file_system: Type of the file system, such as ``ext4``.
        options: Options of this mount: ``rw``, ``nosuid``, ….
        super_options: Options of its file system, which all its mounts share.
        root: The folder of the file system that is mounted; ``/`` is all of it.
    """

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

    def is_below(self, path: str) -> bool:
        """Tell whether it is mounted below a path; False if it is mounted at the path itself."""
        return is_below(self.path, path)


def is_below(path: str, above: str) -> bool:
    """Tell whether a path lies below another one; a path is not below itself.

    Only the texts are compared: links are not followed, and the paths need not exist.
    """
    return path != above and PurePosixPath(path).is_relative_to(above)


def read_mounts(mountinfo: str) -> tuple[Mount, ...]:
    """Return the mounts that can be reached by their paths, parents before children.

    A mount is left out if a later one at the same path, or at a folder above it, hides it.

    Args:
        mountinfo: Text of ``/proc/self/mountinfo``.
    """
    mounts = {number: (parent, mount) for number, parent, mount in _parse(mountinfo)}
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

    Args:
        path: Absolute path without links.
        root: Number of the root mount.
        mounts: Number of the parent, and the mount, by number.
        inner: Numbers of the mounts that lie directly in a mount, by its number.
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


def _parse(mountinfo: str) -> Iterator[tuple[int, int, Mount]]:
    """Yield the number of each mount, the number of its parent, and the mount."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, super_fields = before.split(" "), after.split(" ")
        if len(fields) > 5 and len(super_fields) > 2:
            mount = Mount(
                path=_unescaped(fields[4]),
                file_system=super_fields[0],
                options=tuple(fields[5].split(",")),
                super_options=tuple(super_fields[2].split(",")),
                root=_unescaped(fields[3]),
            )
            yield int(fields[0]), int(fields[1]), mount


def _unescaped(text: str) -> str:
    """Return a path of mountinfo as it is: space, tab, newline and backslash are octal there."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
