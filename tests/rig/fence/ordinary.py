"""``python ordinary.py USER COMMAND``: becomes an ordinary user, as root, and then COMMAND.

USER says which: ``user`` is nobody in particular; ``denied`` may make no namespaces, as in many
containers; ``submount`` has something mounted in the working directory; ``root`` stays root, and
``capless`` is the root of a container. Folders that only root can enter, but hold the Python that
runs the tests, are opened for the command, in mounts of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from autotune.rig.fence import kernel

NOBODY = 65534
PR_CAPBSET_DROP = 24


def main(user: str, *command: str) -> None:
    """Become the user, then the command."""
    if user == "capless":
        kernel._check(kernel._libc().prctl(PR_CAPBSET_DROP, kernel.CAP_SYS_ADMIN, 0, 0, 0), "prctl")
    elif user == "without namespaces":  # a process of its own: after setuid() /proc/self is root's
        kernel.unshare(kernel.CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{NOBODY} {NOBODY} 1")
        Path("/proc/self/gid_map").write_text(f"{NOBODY} {NOBODY} 1")
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    elif user != "root":
        here = os.getcwd()
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        for path in {os.path.realpath(p) for p in (sys.prefix, sys.base_prefix, Path.cwd())}:
            _open_the_way_to(path)
        os.chdir(here)
        if user == "submount":
            kernel.mount("tmpfs", "mounted", "tmpfs")
            Path("mounted/precious").write_text("mine")
            os.chown("mounted/precious", NOBODY, NOBODY)
            kernel.mount("tmpfs", "/mnt", "tmpfs", data="mode=700")  # which only root may enter
            Path("/mnt/inner").mkdir()
            kernel.mount("tmpfs", "/mnt/inner", "tmpfs")
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        if user == "denied":
            again = [sys.executable, "-m", "tests.rig.fence.ordinary", "without namespaces"]
            os.execv(sys.executable, [*again, *command])
    os.execvp(command[0], command)


def _open_the_way_to(path: str) -> None:
    """Let everybody through the folders above a path, and see nothing else in closed ones."""
    for above in reversed(Path(path).parents):
        if above.stat().st_mode & 0o001:
            continue
        following = Path(path).relative_to(above).parts[0]
        real = os.open(above / following, os.O_PATH)
        kernel.mount("tmpfs", str(above), "tmpfs", data="mode=755")
        (above / following).mkdir()
        kernel.mount(f"/proc/self/fd/{real}", str(above / following), flags=kernel.MS_BIND)


if __name__ == "__main__":
    main(*sys.argv[1:])
