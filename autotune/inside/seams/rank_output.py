"""Mutes all ranks except the first, so that the program prints and writes files only once.

Covered: printed output, progress bars, log handlers, experiment trackers, ``torch.save``, files
opened for writing (also by the C code of safetensors, HDF5, SQLite and cv2), renaming, linking and
removing files, making directories.

Ranks exchange checkpoints: the n-th checkpoint that a muted rank would have saved is the n-th that
the first rank saves, even if their names differ. If the muted rank loads it, it reads the first
rank's file, wherever that was renamed or copied to. Other files that a muted rank writes, and
checkpoints in temporary folders, are its own; they lie in a folder that is deleted afterwards.

Not covered: files that other libraries write in C code.
"""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from autotune.inside.hubs.saving import Save, SaveListener
from autotune.inside.ranks.group import Group
from autotune.inside.seams.checkpoint_exchange import absolute, linked_to, told_place
from autotune.inside.seams.rank_files import RankFilesSeam
from autotune.program.trackers import TRACKERS_OFF

PATIENCE_S = 300.0  # for the first rank to write a checkpoint
POLL_S = 0.02


def mute_output() -> None:
    """Send all output of this process to /dev/null, except the error that ends it.

    Covers Python's stdout and stderr, the stdout of C code, trackers and tqdm. The traceback of an
    uncaught exception still goes to the real stderr.
    """
    nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open to the end
    os.dup2(nowhere.fileno(), 1)
    sys.stdout = sys.stderr = nowhere
    sys.excepthook = partial(traceback.print_exception, file=sys.__stderr__)
    os.environ.update(TRACKERS_OFF, TQDM_DISABLE="1")


class RankOutputSeam(RankFilesSeam, SaveListener):
    """Keeps a rank other than the first from writing where the first rank writes.

    ``SeamSet.silence()`` installs it before the program starts. The patched functions run on
    whatever thread the program uses. Loading a checkpoint blocks that thread until the first rank
    has saved it.

    Args:
        shadow_dir: The folder for this rank's files.
        unguarded: Folders in which the rank may write freely.
        group: The processes that train together.
    """

    def __init__(self, shadow_dir: Path, unguarded: Sequence[Path], group: Group) -> None:
        super().__init__(shadow_dir, unguarded)
        self._group = group
        self._turns = 0  # number of checkpoints saved so far, by which ranks identify them
        self._turn_of: dict[str, int] = {}  # by the path at which this rank expects the checkpoint

    def install(self) -> None:
        """Make the shadow folder, then patch saving, loading, renaming, copying and linking."""
        self._shadow_dir.mkdir(parents=True, exist_ok=True)  # os.mkdir is patched below
        super().install()
        self._patches.replace(shutil, "rmtree", self._unless_guarded(shutil.rmtree))
        for owner, name, places in (
            (shutil, "copyfile", lambda src, dst: (os.path.realpath(src), os.path.realpath(dst))),
            (os, "symlink", lambda src, dst: (linked_to(src, dst), absolute(dst))),
            (os, "link", lambda src, dst: (absolute(src), absolute(dst))),
        ):
            self._patches.replace(owner, name, self._pass_on_by(getattr(owner, name), places))
        self._patches.replace(shutil, "copytree", self._copytree_by(shutil.copytree))
        for name in ("copymode", "copystat"):
            self._patches.replace(shutil, name, self._unless_target_guarded(getattr(shutil, name)))

    def _is_guarded(self, real: str) -> bool:
        return not f"{real}{os.sep}".startswith(self._unguarded)

    def _path_for(self, path: Any, mode: str) -> Any:
        if isinstance(path, str):
            # With no old content to keep, nothing has to be copied into the shadow.
            if set(mode) & set("ax+") and not os.path.exists(path):
                mode = "w"
            if "r" in mode:
                path = self._place_of(path)
        return super()._path_for(path, mode)

    def _rename_by(self, original: Callable[..., None]) -> Callable[..., None]:
        seam = self

        def rename(src: Any, dst: Any, **kwargs: Any) -> None:
            source, target = os.path.realpath(src), os.path.realpath(dst)
            if (shadow := seam._shadows.pop(source, None)) is not None:
                seam._shadows[target] = shadow
            elif not seam._is_guarded(target):
                original(src, dst, **kwargs)
            seam._pass_on(absolute(src), absolute(dst))

        return rename

    def _pass_on_by(
        self, original: Callable[..., Any], places: Callable[[Any, Any], tuple[str, str]]
    ) -> Callable[..., Any]:
        """Return a copy or link function that does nothing at a guarded target.

        The first rank does the copying. If the source is a checkpoint, the target is known as the
        same checkpoint from then on.
        """
        seam = self

        def call(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
            source, target = places(src, dst)
            if not seam._is_guarded(target):
                original(src, dst, *args, **kwargs)
            seam._pass_on(source, target)
            return dst

        return call

    def _copytree_by(self, original: Callable[..., Any]) -> Callable[..., Any]:
        seam = self

        def copytree(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
            source, target = os.path.realpath(src), os.path.realpath(dst)
            if not seam._is_guarded(target):
                return original(src, dst, *args, **kwargs)
            for known in [k for k in seam._turn_of if k.startswith(source + os.sep)]:
                seam._pass_on(known, target + known.removeprefix(source))
            return dst

        return copytree

    def _unless_target_guarded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        seam = self

        def call(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
            if not seam._is_guarded(os.path.realpath(dst)):
                return original(src, dst, *args, **kwargs)
            return None

        return call

    def _redirect_mkdir(self) -> None:
        self._patches.replace(os, "mkdir", self._unless_guarded(os.mkdir))

    def _unless_guarded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        seam = self

        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not seam._is_guarded(os.path.realpath(path)):
                return original(path, *args, **kwargs)
            return None

        return call

    def before_save(self, save: Save) -> None:
        """Number a checkpoint; write it to the shadow folder, or not where the first rank does."""
        if not save.is_to_path:
            return
        real = os.path.realpath(save.where)
        self._turns += 1
        self._turn_of[real] = self._turns
        self._shadows.pop(real, None)
        save.is_dropped = self._is_guarded(real)
        if not save.is_dropped:
            save.where = self._shadows[real] = self._shadow_of(real)

    def place_to_load(self, path: Any) -> Any:
        """Return where a checkpoint is; waits until the first rank has saved it."""
        return self._place_of(os.fspath(path))

    def _pass_on(self, source: str, target: str) -> None:
        if source in self._turn_of:
            self._turn_of[target] = self._turn_of[source]

    def _place_of(self, path: str) -> str:
        """Return the path from which to read a file; waits if it is a checkpoint.

        A file that this rank has redirected is read from its shadow, a checkpoint from where the
        first rank has it now. Other paths are returned unchanged.

        Raises:
            TimeoutError: if the first rank has not saved the checkpoint within PATIENCE_S.
        """
        real = os.path.realpath(path)
        if real in self._shadows:
            return str(self._shadows[real])
        turn = max(self._turn_of.get(name, 0) for name in (real, absolute(path)))
        if not turn or not self._is_guarded(real):
            return path
        until = monotonic() + PATIENCE_S
        while (place := told_place(self._group, turn)) is None:
            if monotonic() > until:
                raise TimeoutError(
                    f"rank {self._group.rank} waits for {path}, which the first rank never saves: "
                    "their decisions differ. Leave devices out of the search."
                )
            sleep(POLL_S)
        return place
