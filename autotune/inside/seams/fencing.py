"""The seams between a trial, or a rank, and the user's files, caches and experiment trackers."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.hubs.saving import SaveHub
from autotune.inside.ranks.group import Group
from autotune.inside.seams.downloads import DownloadsSeam
from autotune.inside.seams.guard import GuardSeam, Shadows
from autotune.inside.seams.rank_files import RankFilesSeam, mute_output
from autotune.inside.seams.trackers import TrackersSeam
from autotune.program.fence_options import FenceKind
from autotune.rig.wire import Start


class OverlaySeam(Seam):
    """Makes renames work behind overlays, as they do on a plain file system.

    Renaming a folder, or a file into another overlay, fails there with EXDEV. For calls from Python
    it is done by copying instead, within the trial's view; mv(1) does so by itself. The patched
    functions run on any thread, and in forked children of the program.
    """

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self) -> None:
        """Patch ``os.rename`` and ``os.replace``."""
        for name in ("rename", "replace"):
            self._patches.wrap(os, name, _rename)


def _rename(original: Callable[..., None], src: Any, dst: Any, **kwargs: Any) -> None:
    try:
        original(src, dst, **kwargs)
    except OSError as error:
        if error.errno != errno.EXDEV or kwargs:
            raise
        _move(src, dst, original)


def _move(src: Any, dst: Any, rename: Callable[..., None]) -> None:
    """Do by copying what rename(2) does on one file system.

    The copy is made in the target's folder and then renamed to the target, so that readers never
    see an incomplete one. If copying fails, source and target stay as they were.
    """
    parent, name = os.path.split(os.path.abspath(os.fsdecode(dst)))
    part = os.path.join(parent, f".{name}.autotune-{os.getpid()}")
    try:
        if os.path.isdir(src) and not os.path.islink(src):
            shutil.copytree(src, part, symlinks=True)
            if os.path.lexists(dst):
                os.rmdir(dst)
        else:
            shutil.copy2(src, part, follow_symlinks=False)
        rename(part, dst)
    except BaseException:
        _remove(part)
        raise
    _remove(src)


def _remove(path: Any) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


class FenceSeams:
    """What keeps a trial from changing the user's files, and ranks from writing each file again."""

    def __init__(self, group: Group, saving: SaveHub) -> None:
        self._group, self._saving = group, saving
        self.downloads = DownloadsSeam()
        self._trackers: TrackersSeam | None = None
        self._files: OverlaySeam | GuardSeam | None = None
        self._output: RankFilesSeam | None = None

    def guard_files(self, start: Start) -> None:
        """Keep a trial from changing the user's files, and from reporting to experiment trackers.

        Call it before ``SeamSet.install()``, which wraps functions that are redirected here.
        """
        shadow_dir = Path(start.shadow_dir)
        self._turn_trackers_off(shadow_dir)
        if not start.bare:  # a bare run is not to be changed more than the fence requires
            self.downloads.install()
        if start.fence is FenceKind.OVERLAY:
            self._files = OverlaySeam()
        else:
            places = [*map(Path, start.open_places)]
            is_shared = bool(self._group.started_by)
            self._files = GuardSeam(Shadows(shadow_dir, places, is_shared=is_shared))
            self._saving.join(self._files, within=True)
        self._files.install()

    def silence(self, shadow_dir: Path, open_places: Sequence[Path] = ()) -> None:
        """Let only the first of several ranks print and write the program's files."""
        if self._group.is_first:
            return
        mute_output()
        self._turn_trackers_off(shadow_dir)
        unguarded = [Path.home() / ".cache", Path(tempfile.gettempdir()), *open_places]
        self._output = RankFilesSeam(shadow_dir, unguarded)
        self._output.install()
        self._saving.join(self._output, within=True)

    def remove(self) -> None:
        """Put everything back as it was, in the reverse order of installation."""
        for seam in (self._output, self._files, self._trackers, self.downloads):
            if seam is not None:
                seam.remove()

    def _turn_trackers_off(self, shadow_dir: Path) -> None:
        self._trackers = TrackersSeam(shadow_dir)
        self._trackers.install()
