"""The Linux system calls that the fence needs: namespaces, mounts and Landlock.

Python has no wrappers for them before 3.12, so they are called by ctypes. Numbers and structures
are from the kernel's headers: linux/sched.h, linux/mount.h, linux/landlock.h and
asm-generic/unistd.h (from number 424 on, x86_64 and aarch64 share one table). A call that the
kernel refuses raises ``OSError``, with the path if there is one.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000

MS_NOSUID = 2
MS_NODEV = 4
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
SYS_MOUNT_SETATTR = 442
MOUNT_ATTR_RDONLY = 1
AT_FDCWD = -100
AT_RECURSIVE = 0x8000

PR_SET_NO_NEW_PRIVS = 38
CAP_SYS_ADMIN = 21

SYS_LANDLOCK_CREATE_RULESET = 444
SYS_LANDLOCK_ADD_RULE = 445
SYS_LANDLOCK_RESTRICT_SELF = 446
LANDLOCK_CREATE_RULESET_VERSION = 1
LANDLOCK_RULE_PATH_BENEATH = 1
# Rights that writing needs, by the version of Landlock's interface that introduced them. A kernel
# refuses a rule with a right that it does not know. Reading is never restricted.
WRITING = 0b1_1111_1111_0010  # WRITE_FILE, REMOVE_DIR, REMOVE_FILE, MAKE_CHAR … MAKE_SYM
REFER = 1 << 13  # version 2: rename and link between directories
TRUNCATE = 1 << 14  # version 3
OF_A_FILE = 0b10 | TRUNCATE  # the rights that a rule on a single file may grant


class _RulesetAttr(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def unshare(flags: int) -> None:
    """Move this process to new namespaces (unshare(2))."""
    _check(_libc().unshare(flags), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount a file system, or bind a folder (mount(2))."""
    done = _libc().mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        os.fsencode(data) or None,
    )
    _check(done, f"mount of {kind or 'a bind'} at {target}", target)


def make_read_only(path: str, *, with_inner: bool = False) -> None:
    """Make a mount read-only (mount_setattr(2), Linux 5.12)."""
    attribute = _MountAttr(attr_set=MOUNT_ATTR_RDONLY)
    done = _syscall(
        SYS_MOUNT_SETATTR,
        AT_FDCWD,
        ctypes.c_char_p(os.fsencode(path)),
        AT_RECURSIVE if with_inner else 0,
        ctypes.byref(attribute),
        ctypes.c_size_t(ctypes.sizeof(attribute)),
    )
    _check(done, f"mount_setattr for {path}", path)


def has_capability(number: int, status: str) -> bool:
    """Tell whether a process has a capability in effect."""
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


def landlock_version() -> int:
    """Return the version of the kernel's Landlock interface; 0 if it has none or it is disabled."""
    version = _syscall(SYS_LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_CREATE_RULESET_VERSION)
    return max(0, version)


def forbid_writing_but_below(writable: Iterable[str]) -> None:
    """Deny this process, and everything that it starts, to change files outside of some paths.

    The rule cannot be lifted again. Landlock requires that a process without CAP_SYS_ADMIN gives up
    set-user-ID programs (``PR_SET_NO_NEW_PRIVS``), so that is done here.
    """
    version = landlock_version()
    handled = WRITING | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    attribute = _RulesetAttr(handled)
    ruleset = _syscall(
        SYS_LANDLOCK_CREATE_RULESET, ctypes.byref(attribute), ctypes.sizeof(attribute), 0
    )
    _check(ruleset, "landlock_create_ruleset")
    for path in writable:
        _allow(ruleset, path, handled)
    _check(_libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    _check(_syscall(SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def _allow(ruleset: int, path: str, handled: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rights = handled if os.path.isdir(path) else handled & OF_A_FILE  # noqa: PTH112
        rule = _PathBeneathAttr(rights, place)
        added = _syscall(
            SYS_LANDLOCK_ADD_RULE, ruleset, LANDLOCK_RULE_PATH_BENEATH, ctypes.byref(rule), 0
        )
        _check(added, f"landlock_add_rule for {path}")
    finally:
        os.close(place)


def by_fd(number: int) -> str:
    """Return a path of an open file that stays valid while mounts or links hide the real path.

    Mount options take it: it has no commas or colons.
    """
    return f"/proc/self/fd/{number}"


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _syscall(number: int, *arguments: object) -> int:
    return int(_libc().syscall(ctypes.c_long(number), *arguments))


def _check(result: int, what: str, path: str | None = None) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}", path)
