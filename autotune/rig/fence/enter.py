"""``python -m autotune.rig.fence.enter SPEC -- COMMAND``: covers the files, then becomes COMMAND.

The process has one thread, as a user namespace demands, and starts no other. Everything that the
command and its descendants do to files goes to the upper layers that SPEC names, by whatever call:
Python's, a C library's, a subprocess's.

Covered: all writable file systems that hold files of a user's; shared memory; core dumps.
Not covered: the network, devices, and sockets, which are real.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from autotune.rig import terminal
from autotune.rig.fence import kernel
from autotune.rig.fence.plan import Cover
from autotune.rig.fence.spec import EXERCISE, Covering, FenceSpec, read_spec

FAILED = 125  # exit code, as of docker run for "the container could not be started"
MAX_COPIED_BYTES = 64 << 20  # a larger file of a rebuilt folder is a link to the read-only one
MAX_COPIED_IN_ALL_BYTES = 256 << 20
# How the names of segments begin that living processes share: torch's, Python's, NCCL's, semaphores
SEGMENTS = ("torch_", "psm_", "sem.", "nccl-", "autotune-fence-")


def main(spec_path: str, separator: str = "--", *command: str) -> int:
    """Enter the fence and become the command; return an exit code only where that fails."""
    spec = read_spec(spec_path)
    assert separator == "--", "the command stands after --"
    terminal.take()
    # opened while files are real: later these paths may lead to an upper layer
    with Path(spec.answer_file).open("w", encoding="utf-8") as answer:
        try:
            failures = enter(spec)
            if spec.is_probe:
                json.dump({"failures": failures}, answer)
                return 0
            os.execvp(command[0], command)  # noqa: S606 - the command is our own plan's
        except OSError as error:
            json.dump({"error": str(error)}, answer)
            sys.stderr.write(f"autotune: the fence failed: {error}\n")
            return FAILED


def enter(spec: FenceSpec) -> dict[str, str]:
    """Fence this process; return the covers that failed, by path, with the reasons.

    Raises:
        OSError: when the system refuses; for a probe, only when it refuses everything.
    """
    here = os.getcwd()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    failures: dict[str, str] = {}
    if spec.coverings:
        _new_namespaces(in_user_namespace=spec.in_user_namespace)
        own = [(path, os.open(path, os.O_PATH)) for path in spec.passed_through]
        places = [_Place(covering) for covering in spec.coverings]
        # upper layers and our own folders are reached through mounts that become read-only last
        read_only = [p for p in places if p.covering.step.cover is Cover.READ_ONLY]
        failures = _cover([p for p in places if p not in read_only], spec)
        for path, real in (*own, *(place.original for place in places if place.original)):
            os.makedirs(path, exist_ok=True)
            kernel.mount(_by_fd(real), path, flags=kernel.MS_BIND | kernel.MS_REC)
        failures |= _cover(read_only, spec)
        failures |= _exercised(spec.exercised)
        os.chdir(here)
    if spec.writable is not None:
        kernel.forbid_writing_but_below(spec.writable)
    return failures


def _cover(places: Iterable[_Place], spec: FenceSpec) -> dict[str, str]:
    failures = {}
    for place in places:
        try:
            place.cover(spec)
        except OSError as error:
            if not spec.is_probe:
                raise
            failures[place.covering.step.path] = str(error)
    return failures


def _exercised(folders: Iterable[str]) -> dict[str, str]:
    failures = {}
    for folder in folders:
        try:
            exercise(folder)
        except OSError as error:
            failures[folder] = str(error)
        if not os.access(folder, os.W_OK):
            failures[folder] = "it is read-only inside"
    return failures


class _Place:
    """One covering, with its scratch folders opened while they can be reached."""

    def __init__(self, covering: Covering) -> None:
        self.covering = covering
        self._path = covering.step.path
        self._lower = self._upper = self._work = self._rebuilt = self._scratch = -1
        self.original: tuple[str, int] | None = None  # for links into the real folder
        match covering.step.cover:
            case Cover.OVERLAY:
                self._lower = os.open(self._path, os.O_PATH)
                self._upper = _open(covering.scratch, "upper")
                self._work = _open(covering.scratch, "work")
            case Cover.REBUILT | Cover.MEMORY:
                self._rebuilt = _open(covering.scratch, "rebuilt")
                self._scratch = os.open(covering.scratch, os.O_PATH)
        self._layers = [os.open(layer, os.O_PATH) for layer in covering.layers]

    def cover(self, spec: FenceSpec) -> None:
        """Do it."""
        match self.covering.step.cover:
            case Cover.OVERLAY:
                self._overlay(spec.overlay_options)
                if spec.is_probe:
                    exercise(self._path)
            case Cover.REBUILT:
                self._rebuild()
            case Cover.MEMORY:
                self._memory()
            case Cover.READ_ONLY:
                _make_read_only(self._path)

    def _overlay(self, options: str) -> None:
        attached = [(path, os.open(path, os.O_PATH)) for path in self.covering.step.attached]
        layers = ":".join(map(_by_fd, (*self._layers, self._lower)))
        data = f"lowerdir={layers},upperdir={_by_fd(self._upper)},workdir={_by_fd(self._work)}"
        kernel.mount("overlay", self._path, "overlay", data=data + options)
        for path, real in attached:
            kernel.mount(_by_fd(real), path, flags=kernel.MS_BIND | kernel.MS_REC)

    def _rebuild(self) -> None:
        """Make a folder like the real one, with its folders bound in and its files copied."""
        new = _by_fd(self._rebuilt)
        self._set_aside()
        room = MAX_COPIED_IN_ALL_BYTES
        with os.scandir(self._path) as entries:
            for entry in entries:
                copy = f"{new}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    os.mkdir(copy)
                    kernel.mount(entry.path, copy, flags=kernel.MS_BIND | kernel.MS_REC)
                    kernel.make_read_only(copy, with_inner=True)  # until something covers it
                else:
                    room -= _copy(entry, copy, Path(self._aside, entry.name), room)
        shutil.copystat(self._path, new)
        kernel.mount(new, self._path, flags=kernel.MS_BIND | kernel.MS_REC)

    def _memory(self) -> None:
        """Cover shared memory by a new one; what others have there can be read through links."""
        self._set_aside()
        room = os.statvfs(self._path)
        size = room.f_blocks * room.f_frsize
        names = os.listdir(self._path)
        flags = kernel.MS_NOSUID | kernel.MS_NODEV
        kernel.mount("tmpfs", self._path, "tmpfs", flags, f"size={size},mode=1777")
        for name in names:
            if not name.startswith(SEGMENTS):
                os.symlink(Path(self._aside, name), Path(self._path, name))

    @property
    def _aside(self) -> str:
        """Where the real folder can be read."""
        return f"{self.covering.scratch}/original"

    def _set_aside(self) -> None:
        original = f"{_by_fd(self._scratch)}/original"  # by the folder: so what is mounted is seen
        kernel.mount(self._path, original, flags=kernel.MS_BIND | kernel.MS_REC)
        kernel.make_read_only(original, with_inner=True)
        self.original = self._aside, os.open(original, os.O_PATH)


def exercise(folder: str) -> None:
    """Make a folder, append, rename, delete and read back, where this user may write.

    Raises:
        OSError: when any of it fails or reads back otherwise.
    """
    if not os.access(folder, os.W_OK | os.X_OK):
        return
    inner = Path(folder, f"{EXERCISE}-folder")
    inner.mkdir()
    inner.rmdir()
    first, second = Path(folder, EXERCISE), Path(folder, f"{EXERCISE}-2")
    before = first.read_text(encoding="utf-8") if first.exists() else ""
    with first.open("a", encoding="utf-8") as file:
        file.write("more")
    first.rename(second)
    if second.read_text(encoding="utf-8") != before + "more" or first.exists():
        raise OSError(f"what was written in {folder} does not read back")
    second.unlink()
    if second.exists():
        raise OSError(f"what was deleted in {folder} is still there")


def _new_namespaces(*, in_user_namespace: bool) -> None:
    """Leave the mounts of the others; an ordinary user keeps the own ids, and becomes no root."""
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWNS | (kernel.CLONE_NEWUSER if in_user_namespace else 0))
    if in_user_namespace:
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)


def _make_read_only(path: str) -> None:
    """Make a mount read-only; a folder that is none becomes one."""
    try:
        kernel.make_read_only(path)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        kernel.mount(path, path, flags=kernel.MS_BIND | kernel.MS_REC)
        kernel.make_read_only(path)


def _copy(entry: os.DirEntry[str], copy: str, original: Path, room: int) -> int:
    """Copy a file of a rebuilt folder, if there is room; return its bytes.

    A link is made to what is large, no file, or may be seen but not read.
    """
    try:
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), copy)
            return 0
        size = entry.stat().st_size
        if entry.is_file() and size <= min(room, MAX_COPIED_BYTES):
            shutil.copy2(entry.path, copy)
            return size
    except FileNotFoundError:  # it has gone meanwhile
        return 0
    except PermissionError:
        pass
    os.symlink(original, copy)
    return 0


def _open(folder: str, name: str) -> int:
    return os.open(os.path.join(folder, name), os.O_PATH)


def _by_fd(number: int) -> str:
    """A path without commas and colons, which holds while mounts hide the real one."""
    return f"/proc/self/fd/{number}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
