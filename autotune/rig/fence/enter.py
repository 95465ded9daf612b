"""``python -m autotune.rig.fence.enter DOOR -- COMMAND`` enters a fence, then executes COMMAND.

DOOR is the number of an inherited file, see ``spec.Door``.

It is a separate program because a process can enter a user namespace only while it has a single
thread. Behind overlays, whatever the command and its descendants do to files goes to the upper
layers that its spec names, whether Python, a C library or a subprocess makes the call.

Covered: all writable file systems that hold a user's files; shared memory; core dumps, which are
switched off. Not covered: the network, devices and sockets, which are the real ones.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from autotune.rig import terminal
from autotune.rig.fence import kernel
from autotune.rig.fence.plan import Cover
from autotune.rig.fence.spec import EXERCISE, Covering, Door, FenceSpec

FAILED = 125  # the exit code by which "docker run" says that a container could not be started
# Copies in a rebuilt folder take time and scratch space in each rig. A larger file, and any file
# beyond the total, becomes a link to the read-only original.
MAX_COPIED_BYTES = 64 << 20
MAX_COPIED_IN_ALL_BYTES = 256 << 20
# Prefixes of shared memory that living processes use: torch's, Python's, semaphores, NCCL's and the
# scratch folders of fences. A trial gets no links to them.
SEGMENTS = ("torch_", "psm_", "sem.", "nccl-", "autotune-fence-")


def main(door_number: str, separator: str = "--", *command: str) -> int:
    """Enter the fence and execute the command in place of this process.

    What went wrong is answered through the door. Without a command, every cover is only tried out.

    Returns:
        0 after a probe, ``FAILED`` if the fence could not be entered. Otherwise it never returns.
    """
    door = Door(int(door_number))
    spec = door.spec()
    assert separator == "--", "the command stands after --"
    terminal.take()
    try:
        failures = enter(spec, is_probe=not command)
        if not command:
            door.answer(failures=failures)
            return 0
        environment = {**os.environ, **spec.env}
        os.execvpe(command[0], command, environment)  # noqa: S606 - of our own plan
    except OSError as error:
        door.answer(error=str(error))
        sys.stderr.write(f"autotune: the fence failed: {error}\n")
        return FAILED


def enter(spec: FenceSpec, *, is_probe: bool) -> dict[str, str]:
    """Fence this process and everything that it will start.

    Returns:
        For a probe, the folders that could not be covered, with the reasons; otherwise empty.

    Raises:
        OSError: when the system refuses; for a probe, only if nothing can be covered at all.
    """
    here = os.getcwd()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a dump may be written outside of the fence
    failures: dict[str, str] = {}
    if spec.coverings:
        _new_namespaces(in_user_namespace=spec.in_user_namespace)
        own = [(path, os.open(path, os.O_PATH)) for path in spec.passed_through]
        places = [_Place(c) for c in spec.coverings if os.path.exists(c.step.path)]
        # Read-only mounts come last: upper layers and autotune's folders are reached through them
        # while the other folders are covered.
        read_only = [p for p in places if p.covering.step.cover is Cover.READ_ONLY]
        failures = _cover([p for p in places if p not in read_only], spec, is_probe=is_probe)
        for path, real in (*own, *(place.original for place in places if place.original)):
            os.makedirs(path, exist_ok=True)
            kernel.mount(kernel.by_fd(real), path, flags=kernel.MS_BIND | kernel.MS_REC)
        failures |= _cover(read_only, spec, is_probe=is_probe)
        for folder in spec.exercised:
            try:
                exercise(folder)
            except OSError as error:
                failures[folder] = str(error)
            if not os.access(folder, os.W_OK):
                failures[folder] = "it is read-only inside"
        os.chdir(here)  # once more: the former working directory is the real folder still
    if spec.writable is not None:
        kernel.forbid_writing_but_below(spec.writable)
    return failures


def _cover(places: Iterable[_Place], spec: FenceSpec, *, is_probe: bool) -> dict[str, str]:
    """Cover folders in order; a probe collects failures, where a real trial must not start.

    A folder that somebody has removed since the plan was made needs no cover: the one above it has
    one, so what takes its place cannot be written to either.
    """
    failures = {}
    for place in places:
        path = place.covering.step.path
        try:
            place.cover(spec.overlay_options)
            if is_probe and place.covering.step.cover is Cover.OVERLAY:
                exercise(path)
        except OSError as error:
            if not os.path.exists(path):
                continue
            if not is_probe:
                raise
            failures[path] = str(error)
    return failures


class _Place:
    """One folder to cover, with its scratch folders held open."""

    def __init__(self, covering: Covering) -> None:
        self.covering = covering
        self._path = covering.step.path
        self._lower = self._upper = self._work = self._rebuilt = self._scratch = -1
        # Path and descriptor of a read-only view of the real folder, to which links lead.
        self.original: tuple[str, int] | None = None
        match covering.step.cover:
            case Cover.OVERLAY:
                self._lower = os.open(self._path, os.O_PATH)
                self._upper = os.open(f"{covering.scratch}/upper", os.O_PATH)
                self._work = os.open(f"{covering.scratch}/work", os.O_PATH)
            case Cover.REBUILT | Cover.MEMORY:
                self._rebuilt = os.open(f"{covering.scratch}/rebuilt", os.O_PATH)
                self._scratch = os.open(covering.scratch, os.O_PATH)
        self._layers = [os.open(layer, os.O_PATH) for layer in covering.layers]

    def cover(self, overlay_options: str) -> None:
        """Cover the folder in the way that its step says."""
        match self.covering.step.cover:
            case Cover.OVERLAY:
                # An overlay hides the mounts inside of the folder, so they are bound in again
                attached = [(p, os.open(p, os.O_PATH)) for p in self.covering.step.attached]
                layers = ":".join(map(kernel.by_fd, (*self._layers, self._lower)))
                upper, work = kernel.by_fd(self._upper), kernel.by_fd(self._work)
                data = f"lowerdir={layers},upperdir={upper},workdir={work}{overlay_options}"
                kernel.mount("overlay", self._path, "overlay", data=data)
                for path, real in attached:
                    kernel.mount(kernel.by_fd(real), path, flags=kernel.MS_BIND | kernel.MS_REC)
            case Cover.REBUILT:
                self._rebuild()
            case Cover.MEMORY:
                self._memory()
            case Cover.READ_ONLY:
                _make_read_only(self._path)

    def _rebuild(self) -> None:
        """Cover the folder by a new one with the same entries.

        Inner folders are bound in, read-only until a later step covers them. Files are copied, or
        linked if they are too large.
        """
        new = kernel.by_fd(self._rebuilt)
        self._set_aside()
        room = MAX_COPIED_IN_ALL_BYTES
        with os.scandir(self._path) as entries:
            for entry in entries:
                copy = f"{new}/{entry.name}"
                if not entry.is_dir(follow_symlinks=False):
                    room -= _copy(entry, copy, Path(self._aside, entry.name), room)
                    continue
                os.mkdir(copy)
                try:
                    kernel.mount(entry.path, copy, flags=kernel.MS_BIND | kernel.MS_REC)
                except FileNotFoundError:  # somebody has removed it meanwhile
                    os.rmdir(copy)
                else:
                    kernel.make_read_only(copy, with_inner=True)  # until a later step covers it
        shutil.copystat(self._path, new)
        kernel.mount(new, self._path, flags=kernel.MS_BIND | kernel.MS_REC)

    def _memory(self) -> None:
        """Cover shared memory by a new tmpfs of the same size.

        Files that other programs keep there stay readable through links; segments of running
        processes do not appear.
        """
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
        """Path at which the real folder can still be read."""
        return f"{self.covering.scratch}/original"

    def _set_aside(self) -> None:
        # Opened through the folder's descriptor and after the mount, so that it is the mount that
        # is held and not the empty folder below it.
        original = f"{kernel.by_fd(self._scratch)}/original"
        kernel.mount(self._path, original, flags=kernel.MS_BIND | kernel.MS_REC)
        kernel.make_read_only(original, with_inner=True)
        self.original = self._aside, os.open(original, os.O_PATH)


def exercise(folder: str) -> None:
    """Try what programs do to files: make a folder, append, rename, read back and delete."""
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
    """Give this process mounts that no other process sees.

    An ordinary user needs a user namespace for it. The user's and group's ids are mapped to
    themselves, so the program sees the ids that it always has and does not run as root.
    """
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWNS | (kernel.CLONE_NEWUSER if in_user_namespace else 0))
    if in_user_namespace:
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)


def _make_read_only(path: str) -> None:
    """Make a mount read-only; a folder that is not a mount is bound onto itself first."""
    try:
        kernel.make_read_only(path)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        kernel.mount(path, path, flags=kernel.MS_BIND | kernel.MS_REC)
        kernel.make_read_only(path)


def _copy(entry: os.DirEntry[str], copy: str, original: Path, room: int) -> int:
    """Copy an entry of a rebuilt folder if it fits, or link to the original."""
    try:
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), copy)
            return 0
        size = entry.stat().st_size
        if entry.is_file() and size <= min(room, MAX_COPIED_BYTES):
            shutil.copy2(entry.path, copy)
            return size
    except FileNotFoundError:  # it was deleted meanwhile
        return 0
    except PermissionError:
        pass
    os.symlink(original, copy)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
