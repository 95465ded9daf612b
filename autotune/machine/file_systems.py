"""Which file system a folder lies on, as far as it matters: whether it is one of a network.

SQLite's locks are not safe on those (https://www.sqlite.org/faq.html#q5): some refuse them, and
some grant them within one machine only. A lock that can be taken proves nothing there.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

from autotune.machine.kernel_files import text_of, unescaped

PROC = Path("/proc/self")
FUSE = "fuse"
# By f_type of statfs(2): of the kernel's include/uapi/linux/magic.h, the ones of other sources
# as they stand in coreutils' table, src/stat.c
MAGIC = {
    0x00006969: "nfs",
    0x0000517B: "smb",
    0xFE534D42: "smb2",
    0xFF534D42: "cifs",
    0x00C36400: "ceph",
    0x01021997: "9p",
    0x5346414F: "afs",
    0x6B414653: "afs",
    0x73757245: "coda",
    0x7461636F: "ocfs2",
    0x01161970: "gfs2",
    0x65735546: FUSE,
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x19830326: "beegfs",
    0xAAD7AAEA: "panfs",
    0xBEEFDEAD: "snfs",
    0x20030528: "orangefs",
    0x786F4256: "vboxsf",
    0xBACBACBC: "vmhgfs",
}
# By their names in /proc/self/mountinfo, where statfs(2) has another number or none
NAMES = {*MAGIC.values(), "nfs4", "smb3", "wekafs", "glusterfs", "beegfs_nodev", "virtiofs"} - {
    FUSE
}
# All others of FUSE are taken for ones of a network: sshfs, s3fs, gcsfuse, rclone, ceph-fuse, …
LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuse.mergerfs", "fuse.gocryptfs", "fuse.encfs", "fuse.lxcfs"}


def network_file_system(folder: Path, proc: Path = PROC) -> str:
    """Return the kind of network file system that a folder lies on; empty if it lies on none."""
    return kind_of(folder.resolve(), _magic(folder), text_of(proc / "mountinfo"))


def kind_of(folder: Path, magic: int | None, mountinfo: str) -> str:
    """Return the kind of network file system that a folder lies on; empty if it lies on none.

    Args:
        folder: Its path without links.
        magic: ``f_type`` of statfs(2); None where that cannot be asked.
        mountinfo: The text of /proc/self/mountinfo, as proc(5) describes it.
    """
    by_number = MAGIC.get(magic or 0, "")
    if by_number and by_number != FUSE:
        return by_number
    name = _mounted(folder, mountinfo)
    is_of_network = name in NAMES or (name.startswith("fuse.") and name not in LOCAL_FUSE)
    return name if is_of_network else ""


def _mounted(folder: Path, mountinfo: str) -> str:
    """Return the kind of the mount that a folder lies on: the last one that covers it."""
    longest, name = -1, ""
    for line in mountinfo.splitlines():
        here, _, there = line.partition(" - ")
        match here.split(), there.split():
            case [_, _, _, _, point, *_], [kind, *_]:
                place = Path(unescaped(point))
                if folder.is_relative_to(place) and len(place.parts) >= longest:
                    longest, name = len(place.parts), kind
    return name


def _magic(folder: Path) -> int | None:
    """Return ``f_type``, the first field of ``struct statfs``; Python's statvfs leaves it out."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        found = (ctypes.c_long * 32)()  # 120 bytes on Linux with 64 bits
        if libc.statfs(os.fsencode(folder), found) == 0:
            return int(found[0]) & 0xFFFFFFFF
    return None
