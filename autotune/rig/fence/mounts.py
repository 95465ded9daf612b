"""What is mounted here, from /proc/self/mountinfo (proc_pid_mountinfo(5))."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

# File systems that hold no files of a user's: the kernel's own, and devices.
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
    """One mount.

    Attributes:
        path: Where it is mounted.
        file_system: Its type, such as ``ext4``.
        options: Of this mount: ``rw``, ``nosuid``, ….
        super_options: Of its file system.
        root: The folder of the file system that is mounted.
    """

    path: str
    file_system: str
    options: tuple[str, ...]
    super_options: tuple[str, ...] = ()
    root: str = "/"

    @property
    def is_writable(self) -> bool:
        """Neither this mount nor its file system is read-only."""
        return "ro" not in self.options and "ro" not in self.super_options

    @property
    def holds_user_files(self) -> bool:
        """It is no file system of the kernel's own."""
        return self.file_system not in KERNEL_FILE_SYSTEMS

    def is_below(self, path: str) -> bool:
        """It is mounted in a folder below a path, and not at the path itself."""
        return is_below(self.path, path)


def is_below(path: str, above: str) -> bool:
    """Tell whether a path lies below another one, by their texts; a path is not below itself."""
    return path != above and PurePosixPath(path).is_relative_to(above)


def read_mounts(mountinfo: str) -> tuple[Mount, ...]:
    """Return the mounts that can be seen, parents before children; one that hides others hides."""
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
    """Return the number of the mount that a path leads to, walking as the kernel does."""
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
    """Yield the numbers of a mount and of its parent, and the mount."""
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
    """The kernel writes space, tab, newline and backslash as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
