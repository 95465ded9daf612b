"""The fences that work without mounts: Landlock together with the guard, or the guard alone.

They are for systems that deny overlays, such as most containers. The guard
(``autotune.inside.seams.guard``) redirects what Python's own functions write to a shadow folder.
Landlock (Linux 5.13) denies all other writes: what the guard misses, such as a write by a C
library, fails with an error that names the file, and the file stays as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from autotune.program.fence_options import FenceKind, FenceOptions
from autotune.program.program import LaunchPlan
from autotune.rig.fence import kernel, scratch
from autotune.rig.fence.base import Fence, View, entering
from autotune.rig.fence.caches import cache_roots
from autotune.rig.fence.plan import SHARED_MEMORY
from autotune.rig.fence.scratch import Room, Scratch
from autotune.rig.fence.spec import FenceSpec
from autotune.rig.fence.trial import Refused, check_runs, read_answer

# Every program writes to devices, shared memory and /proc/self, and none of these are the user's
# files, so Landlock leaves them writable.
NO_FILES = ("/dev", "/proc", "/sys")
# The name that torch's MapAllocator gives to shared memory; the number is the process's id.
SEGMENT = re.compile(r"torch_(\d+)_")


class GuardFence(Fence):
    """The guard inside the program, alone or together with Landlock.

    Caches that exist are real: trials fill them, and nothing needs to be downloaded again.

    Args:
        options: What the user says about the fence.
        run_dir: The run directory, which is one of the places for shadow folders.
        has_landlock: Whether Landlock denies the writes that the guard misses.

    Raises:
        Refused: when there is no place for shadow folders, or when Landlock does not work here.
    """

    def __init__(self, options: FenceOptions, run_dir: Path, *, has_landlock: bool) -> None:
        super().__init__()
        self.kind = FenceKind.LANDLOCK if has_landlock else FenceKind.GUARD
        places = scratch.candidates(options.scratch_dir, run_dir)
        if not places:
            super().close()
            raise Refused(f"neither {run_dir} nor a folder for temporary files can be written")
        self._scratch = Scratch(places[0])
        caches = (*cache_roots(os.environ), *map(Path.absolute, options.caches))
        # A Landlock rule needs a folder that exists. A cache that does not exist yet is made in the
        # shadow folder.
        self.open_places = tuple(place for place in caches if place.is_dir())
        self._rooms = scratch.rooms(self.folders, options.max_scratch_bytes)
        self.max_scratch_bytes = min(room.max_bytes for room in self._rooms)
        if has_landlock:
            try:
                self._try_landlock()
            except BaseException:
                self.close()
                raise

    @property
    def sentence(self) -> str:
        """What the fence does, as a sentence that the user reads before the first trial."""
        guarded = (
            f"Trials run behind a guard: what Python's functions write, rename or delete goes to "
            f"{self._scratch.path.parent} and is thrown away"
        )
        if self.kind is FenceKind.LANDLOCK:
            return f"{guarded}; other writes to your files are denied (Landlock)."
        return (
            f"{guarded}; what C libraries and subprocesses write to your files is real "
            "(--allow-side-effects)."
        )

    def view(self) -> View:
        """Return a view in which nothing has been written yet."""
        return GuardView(self, self._scratch.path, self._rooms)

    @property
    def folders(self) -> tuple[Path, ...]:
        """The scratch folders; the one for autotune's own files comes first."""
        return (self._own.path, self._scratch.path)

    def close(self) -> None:
        """Remove the scratch folders."""
        self._scratch.close()
        super().close()

    def writable(self, own: Sequence[Path]) -> tuple[str, ...] | None:
        """Return the folders that Landlock leaves writable; None if Landlock is not used.

        Args:
            own: Folders of autotune's that the rig writes to.
        """
        if self.kind is not FenceKind.LANDLOCK:
            return None
        return (*NO_FILES, *map(str, (*self.folders, *own, *self.open_places)))

    def _try_landlock(self) -> None:
        """Check that a write to an allowed folder works and one to another folder is denied."""
        if not kernel.landlock_version():
            raise Refused("this kernel has no Landlock, or it is switched off")
        allowed, denied = self._scratch.path / "allowed", self._scratch.path / "denied"
        for folder in (allowed, denied):
            folder.mkdir()
        spec = FenceSpec(writable=(*NO_FILES, str(allowed)))
        check_runs(spec, "touch", str(allowed / "file"))
        try:
            check_runs(spec, "touch", str(denied / "file"))
        except Refused:
            return
        raise Refused("a write was not denied")


class GuardView(View):
    """The shadow folder of one rig.

    Args:
        fence: The fence that makes this view.
        place: Scratch folder in which the shadow folder is made.
        rooms: How much all rigs may write, by file system.
    """

    def __init__(self, fence: GuardFence, place: Path, rooms: Sequence[Room]) -> None:
        self.own_dir = fence.new_own_dir()
        self.shadow_dir = place / self.own_dir.name
        self._fence = fence
        self._rooms = [room.of(self.own_dir.name) for room in rooms]
        self._segments = _segments()

    def fenced(self, plan: LaunchPlan, own: Sequence[Path]) -> LaunchPlan:
        """Return the plan that starts a process behind the fence."""
        spec = FenceSpec(
            writable=self._fence.writable(own), answer_file=str(self.own_dir / "answer")
        )
        spec.write(self.own_dir / "spec")
        return entering(self.own_dir / "spec", plan)

    def overflow(self) -> str | None:
        """Return how much the trial wrote, if that is more than it may; None if it is not."""
        return next(filter(None, (room.overflow() for room in self._rooms)), None)

    def prepared(self, roots: Sequence[Path], here: Path) -> str | None:  # noqa: ARG002
        """Do nothing: caches are real behind this fence, so they are kept anyway."""
        return None

    def error(self) -> str | None:
        """Return why a started process could not enter the fence; None if it could."""
        error: str | None = read_answer(self.own_dir / "answer").get("error")
        return error

    def close(self) -> None:
        """Throw the writes away, and the shared memory that the rig's processes left behind.

        Shared memory is real behind this fence. A segment is removed if it was made since this view
        and its process has ended; its name holds the process's id.
        """
        for segment in _segments() - self._segments:
            if not psutil.pid_exists(int(SEGMENT.match(segment.name)[1])):  # type: ignore[index]
                segment.unlink(missing_ok=True)
        scratch.remove(self.shadow_dir)
        scratch.remove(self.own_dir)


def _segments() -> set[Path]:
    """Return the segments of shared memory that torch made in processes of this user."""
    found = set()
    for path in Path(SHARED_MEMORY).glob("torch_*"):
        with suppress(FileNotFoundError):  # many segments exist for milliseconds only
            if SEGMENT.match(path.name) and path.stat().st_uid == os.geteuid():
                found.add(path)
    return found
