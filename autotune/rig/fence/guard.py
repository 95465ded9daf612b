"""The fences that work without mounts: Landlock together with the guard, or the guard alone.

They are for systems that deny overlays, such as most containers. The guard
(``autotune.inside.seams.guard``) redirects what Python's own functions write to a shadow folder.
Landlock (Linux 5.13) denies all other writes: what the guard misses, such as a write by a C
library, fails with an error that names the file, and the file stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from autotune.files.scratch import Scratch
from autotune.program.fence_options import FenceKind, FenceOptions
from autotune.rig.fence import kernel, room
from autotune.rig.fence.base import Fence, Refused, try_out
from autotune.rig.fence.caches import cache_roots
from autotune.rig.fence.spec import FenceSpec

# Every program writes to devices, shared memory and /proc/self, and none of these are the user's
# files, so Landlock leaves them writable.
NO_FILES = ("/dev", "/proc", "/sys")


class GuardFence(Fence):
    """The guard inside the program, alone or together with Landlock.

    Caches that exist are real: trials fill them, and nothing needs to be downloaded again.

    Raises:
        Refused: when there is no place for shadow folders, or when Landlock does not work here.
    """

    def __init__(self, options: FenceOptions, run_dir: Path, *, has_landlock: bool) -> None:
        places = room.candidates(options.scratch_dir, run_dir)
        if not places:
            raise Refused(f"neither {run_dir} nor a folder for temporary files can be written")
        super().__init__()
        self.kind = FenceKind.LANDLOCK if has_landlock else FenceKind.GUARD
        self._scratches.append(Scratch(places[0]))
        caches = (*cache_roots(os.environ), *map(Path.absolute, options.caches))
        # A Landlock rule needs a folder that exists. A cache that does not exist yet is made in the
        # shadow folder.
        self.open_places = tuple(place for place in caches if place.is_dir())
        self.rooms = room.rooms(self.folders, options.max_scratch_bytes)
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
            f"{self.shadow_place.parent} and is thrown away"
        )
        if self.kind is FenceKind.LANDLOCK:
            return f"{guarded}; other writes to your files are denied (Landlock)."
        return (
            f"{guarded}; what C libraries and subprocesses write to your files is real "
            "(--fence guard)."
        )

    @property
    def shadow_place(self) -> Path:
        """The scratch folder for what the guard inside the program redirects."""
        return self.folders[-1]

    def spec(self, name: str, own: Sequence[Path]) -> FenceSpec:  # noqa: ARG002
        """Return which folders Landlock leaves writable; without Landlock nothing is restricted."""
        if self.kind is not FenceKind.LANDLOCK:
            return FenceSpec()
        return FenceSpec(writable=(*NO_FILES, *map(str, (*self.folders, *own, *self.open_places))))

    def _try_landlock(self) -> None:
        """Check that a write to an allowed folder works and one to another folder is denied."""
        if not kernel.landlock_version():
            raise Refused("this kernel has no Landlock, or it is switched off")
        allowed, denied = self.shadow_place / "allowed", self.shadow_place / "denied"
        for folder in (allowed, denied):
            folder.mkdir()
        spec = FenceSpec(writable=(*NO_FILES, str(allowed)))
        try_out(spec, "touch", str(allowed / "file"))
        try:
            try_out(spec, "touch", str(denied / "file"))
        except Refused:
            return
        raise Refused("a write was not denied")
