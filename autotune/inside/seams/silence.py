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
        self._writes: dict[str, int] = {}  # of checkpoints, by where this rank would have them

    def install(self) -> None:
        """Begin to keep quiet."""
        self._shadow_dir.mkdir(parents=True, exist_ok=True)  # while directories can be made
        super().install()
        self._patches.replace(shutil, "rmtree", self._unless_guarded(shutil.rmtree))
        self._patches.replace(shutil, "copyfile", self._copy_by(shutil.copyfile))
        for name in ("copymode", "copystat"):
            self._patches.replace(shutil, name, self._unless_target_guarded(getattr(shutil, name)))

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
            seam._note_passed_on(_place(src), _place(dst))
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
            seam._note_passed_on(os.path.realpath(src), target)
            return dst

        return copy

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

    def _redirect_torch(self) -> None:
        original_save, original_load = torch.save, torch.load
        seam = self

        def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(f, (str, os.PathLike)):
                seam._note_write(os.path.realpath(f))
            else:  # a file that is open is one of this rank's own, or in memory
                original_save(obj, f, *args, **kwargs)

        def load(f: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(f, (str, os.PathLike)):
                seam._wait_for(os.path.realpath(f))
            return original_load(f, *args, **kwargs)

        self._patches.replace(torch, "save", save)
        self._patches.replace(torch, "load", load)

    def _note_write(self, real: str) -> None:
        self._writes[real] = self._writes.get(real, 0) + 1

    def _note_passed_on(self, source: str, target: str) -> None:
        if source in self._writes:
            self._note_write(target)

    def _wait_for(self, real: str) -> None:
        """Let the first rank write a checkpoint as often as this one would have by now."""
        count = self._writes.get(real, 0)
        until = monotonic() + PATIENCE_S
        while count and writes_of(self._group, real) < count and monotonic() < until:
            sleep(POLL_S)


class TellSavesSeam:
    """On the first rank: tells the others which checkpoints are written, renamed and copied."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._written: set[str] = set()
        self._patches = Patches()

    def install(self) -> None:
        """Begin to tell."""
        original = torch.save
        seam = self

        def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
            original(obj, f, *args, **kwargs)
            if isinstance(f, (str, os.PathLike)):
                seam._tell(os.path.realpath(f))

        self._patches.replace(torch, "save", save)
        for name in ("replace", "rename"):
            self._patches.replace(os, name, self._passing_on(getattr(os, name), _place))
        copy = self._passing_on(shutil.copyfile, os.path.realpath)
        self._patches.replace(shutil, "copyfile", copy)

    def _passing_on(
        self, original: Callable[..., Any], place_of: Callable[[Any], str]
    ) -> Callable[..., Any]:
        seam = self

        def call(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
            source, target = place_of(src), place_of(dst)
            done = original(src, dst, *args, **kwargs)
            if source in seam._written:
                seam._tell(target)
            return done

        return call

    def _tell(self, real: str) -> None:
        self._written.add(real)
        self._group.store.add(_writes_key(real), 1)

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        self._patches.undo()


def writes_of(group: Group, real: str) -> int:
    """Return how often the first rank has written a checkpoint there, or brought one."""
    return int(group.store.add(_writes_key(real), 0))


def _place(path: str | os.PathLike[str]) -> str:
    """Where a file lies that is renamed: of a link, the link itself."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)  # noqa: PTH118


def _writes_key(real: str) -> str:
    return f"saved/{real}"
