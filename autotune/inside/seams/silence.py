"""The seam that silences ranks beside the first: one program is heard, and one writes files.

Covered: what is printed, progress bars, log handlers, experiment trackers, ``torch.save``, files
opened for writing, renamed or removed, directories made. A checkpoint that such a rank would have
saved and loads again is the first rank's; other files that it writes are its own, in a folder that
ends with it. Not covered: what other libraries write by their own C code.
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

import torch

from autotune.inside.group import Group
from autotune.inside.seams.base import Patches
from autotune.inside.seams.saving import SavingSeam
from autotune.trackers import TRACKERS_OFF

PATIENCE_S = 300.0  # for the first rank to write a checkpoint
POLL_S = 0.02


def hush() -> None:
    """Print nothing from here on but the error that ends the process."""
    nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - open to the end
    os.dup2(nowhere.fileno(), 1)
    sys.stdout = sys.stderr = nowhere
    sys.excepthook = partial(traceback.print_exception, file=sys.__stderr__)
    os.environ.update(TRACKERS_OFF, TQDM_DISABLE="1")


class SilenceSeam(SavingSeam):
    """Keeps a rank from writing where the first rank writes."""

    def __init__(self, shadow_dir: Path, unguarded: Sequence[Path], group: Group) -> None:
        super().__init__(shadow_dir, unguarded, is_first=False)
        self._group = group
        self._written: dict[str, int] = {}
        self._saves: dict[str, tuple[str, int]] = {}

    def install(self) -> None:
        """Begin to keep quiet."""
        self._shadow_dir.mkdir(parents=True, exist_ok=True)  # while directories can be made
        super().install()
        self._patches.replace(shutil, "rmtree", self._unless_guarded(shutil.rmtree))
        for name in ("copyfile", "copymode", "copystat"):
            self._patches.replace(shutil, name, self._copy_by(getattr(shutil, name)))

    def _is_guarded(self, real: str) -> bool:
        return not f"{real}{os.sep}".startswith(self._unguarded)

    def _path_for(self, path: Any, mode: str) -> Any:
        if isinstance(path, str):
            if set(mode) & set("ax+") and not os.path.exists(path):  # noqa: PTH110
                mode = "w"
            if "r" in mode:
                self._wait_for(os.path.realpath(path))
        return super()._path_for(path, mode)

    def _rename_by(self, original: Callable[..., None]) -> Callable[..., None]:
        seam = self

        def rename(src: Any, dst: Any, **kwargs: Any) -> None:
            source, target = os.path.realpath(src), os.path.realpath(dst)
            if not seam._is_guarded(target):
                original(src, dst, **kwargs)
                return
            if source in seam._saves:
                seam._saves[target] = seam._saves[source]
            if (shadow := seam._shadows.pop(source, None)) is not None:
                seam._shadows[target] = shadow

        return rename

    def _copy_by(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The first rank copies; what is a checkpoint of its goes on being one."""
        seam = self

        def copy(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
            target = os.path.realpath(dst)
            if not seam._is_guarded(target):
                return original(src, dst, *args, **kwargs)
            if (saved := seam._saves.get(os.path.realpath(src))) is not None:
                seam._saves[target] = saved
            return dst

        return copy

    def _redirect_mkdir(self) -> None:
        self._patches.replace(os, "mkdir", self._unless_guarded(os.mkdir))

    def _unless_guarded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        seam = self

        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not seam._is_guarded(os.path.realpath(path)):
                return original(path, *args, **kwargs)
            return None

        return call

    def _redirect_torch(self) -> None:
        original_save, original_load = torch.save, torch.load
        seam = self

        def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(f, (str, os.PathLike)):
                seam._note_save(os.path.realpath(f))
            else:  # a file that is open is one of this rank's own, or in memory
                original_save(obj, f, *args, **kwargs)

        def load(f: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(f, (str, os.PathLike)):
                seam._wait_for(os.path.realpath(f))
            return original_load(f, *args, **kwargs)

        self._patches.replace(torch, "save", save)
        self._patches.replace(torch, "load", load)

    def _note_save(self, real: str) -> None:
        self._written[real] = self._written.get(real, 0) + 1
        self._saves[real] = (real, self._written[real])

    def _wait_for(self, real: str) -> None:
        """Let the first rank finish a checkpoint that this one would have saved by now."""
        if real not in self._saves:
            return
        written_as, count = self._saves[real]
        until = monotonic() + PATIENCE_S
        while monotonic() < until:
            is_written = saves_of(self._group, written_as) >= count
            if is_written and os.path.exists(real):  # noqa: PTH110 - it may be renamed afterwards
                return
            sleep(POLL_S)


class TellSavesSeam:
    """On the first rank: tells the others which checkpoints are written."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._patches = Patches()

    def install(self) -> None:
        """Begin to tell."""
        original = torch.save
        group = self._group

        def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
            original(obj, f, *args, **kwargs)
            if isinstance(f, (str, os.PathLike)):
                group.store.add(_saves_key(os.path.realpath(f)), 1)

        self._patches.replace(torch, "save", save)

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        self._patches.undo()


def saves_of(group: Group, real: str) -> int:
    """Return how often the first rank has saved a checkpoint."""
    return int(group.store.add(_saves_key(real), 0))


def _saves_key(real: str) -> str:
    return f"saved/{real}"
