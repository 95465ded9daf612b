"""Base of the seam that redirects the files written by all ranks except the first.

An ordinary script that trains as several ranks would write each of its files once per rank, to the
same path. Only the first rank may do so; the others write to a shadow folder, which is deleted
afterwards.

Covered: ``torch.save`` anywhere; ``open`` (and so ``Path.write_text``, numpy, json, pickle) for
writing; renaming and removing files; making folders; ``logging.FileHandler``; TensorBoard's
``SummaryWriter``; safetensors, HDF5, SQLite and images of cv2.

Not covered: files that other libraries write in C code.
"""

from __future__ import annotations

import builtins
import hashlib
import io
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.inside.hubs.after_import import AfterImport
from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.seams import library_files

# A larger file that is opened for change is not copied to a shadow but opened itself: it is
# probably a memory-mapped data set, which programs open with "r+" and only read.
MAX_COPIED_BYTES = 256 * 2**20
TENSORBOARD = "torch.utils.tensorboard.writer"


class RankFilesSeam(Seam):
    """Redirects the files that a rank writes to shadow files.

    A file that the rank has redirected is read from its shadow, too. ``RankOutputSeam`` derives
    from it. The patched functions run on whatever thread the program uses.

    Args:
        shadow_dir: The folder for shadow files; made when the first one is needed.
        unguarded: Directories in which the program may write freely: caches and its temporary
            files.
    """

    def __init__(self, shadow_dir: Path, unguarded: Sequence[Path]) -> None:
        self._shadow_dir = shadow_dir
        places = (*unguarded, shadow_dir, Path("/dev"), Path("/proc"), Path("/sys"))
        self._unguarded = tuple(os.path.realpath(place) + os.sep for place in places)
        self._shadows: dict[str, Path] = {}
        self._made: set[str] = set()
        self._imports = AfterImport()
        self._patches = Patches()

    def install(self) -> None:
        """Patch Python's, torch's and the libraries' functions that write files.

        Libraries that are imported later are patched when they are.
        """
        self._redirect_open()
        self._redirect_renames()
        self._redirect_removals()
        self._redirect_mkdir()
        self._redirect_file_handler()
        self._imports.wait_for(TENSORBOARD, self._redirect_summary_writer)
        for call in library_files.CALLS:
            self._imports.wait_for(
                call.module,
                partial(
                    library_files.redirect, call, path_for=self._path_for, patches=self._patches
                ),
            )

    def remove(self) -> None:
        """Put everything back as it was."""
        self._imports.remove()
        self._patches.undo()

    def _redirect_open(self) -> None:
        original = builtins.open
        seam = self

        def guarded_open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, (str, os.PathLike)):
                file = seam._path_for(os.fspath(file), mode)
            return original(file, mode, *args, **kwargs)

        for module in (builtins, io):  # pathlib opens by io.open
            self._patches.replace(module, "open", guarded_open)

    def _path_for(self, path: Any, mode: str) -> Any:
        writes = bool(set(mode) & set("wax+"))
        if not isinstance(path, str) or not (writes or self._shadows):
            return path
        real = os.path.realpath(path)
        if real in self._shadows:
            return str(self._shadows[real])
        if not writes:
            return path
        if not self._is_guarded(real):
            self._made.add(real)
            return path
        keeps_content = "w" not in mode
        if keeps_content and os.path.getsize(real) > MAX_COPIED_BYTES:
            return path
        shadow = self._shadow_of(real)
        if keeps_content:
            shutil.copyfile(real, shadow)
        self._shadows[real] = shadow
        return str(shadow)

    def _is_guarded(self, real: str) -> bool:
        """Tell whether a path is the user's file, which existed before this trial."""
        is_own = real in self._made or real.startswith(self._unguarded)
        return not is_own and os.path.isfile(real)

    def _shadow_of(self, real: str) -> Path:
        self._shadow_dir.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(os.path.dirname(real).encode()).hexdigest()[:8]
        return self._shadow_dir / f"{digest}-{os.path.basename(real)}"

    def _redirect_renames(self) -> None:
        for name in ("replace", "rename"):
            self._patches.replace(os, name, self._rename_by(getattr(os, name)))

    def _rename_by(self, original: Callable[..., None]) -> Callable[..., None]:
        """Return a rename that moves the source into a shadow if the target is guarded.

        Programs often write a file under a temporary name and rename it over the old one. The old
        one must not be replaced.
        """
        seam = self

        def rename(src: Any, dst: Any, **kwargs: Any) -> None:
            if kwargs:  # relative to open directories (dir_fd): not redirected
                original(src, dst, **kwargs)
                return
            source, target = os.path.realpath(src), os.path.realpath(dst)
            shadow = seam._shadows.pop(source, None)
            if shadow is not None:
                seam._shadows[target] = shadow
            elif seam._is_guarded(target) and os.path.isfile(source):
                seam._shadows[target] = seam._shadow_of(target)
                shutil.move(source, seam._shadows[target])
            else:
                original(src, dst)
                seam._made.add(target)

        return rename

    def _redirect_removals(self) -> None:
        for name in ("remove", "unlink"):
            self._patches.replace(os, name, self._remove_by(getattr(os, name)))

    def _remove_by(self, original: Callable[..., None]) -> Callable[..., None]:
        seam = self

        def remove(path: Any, **kwargs: Any) -> None:
            real = os.path.realpath(path)
            if kwargs or not (real in seam._shadows or seam._is_guarded(real)):
                original(path, **kwargs)
            seam._shadows.pop(real, None)

        return remove

    def _redirect_mkdir(self) -> None:
        original = os.mkdir

        def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
            try:
                original(path, *args, **kwargs)
            except FileExistsError:
                if not os.path.isdir(path):
                    raise

        self._patches.replace(os, "mkdir", mkdir)

    def _redirect_file_handler(self) -> None:
        original = logging.FileHandler.__init__
        seam = self

        def init(handler: logging.FileHandler, filename: Any, *args: Any, **kwargs: Any) -> None:
            real = os.path.realpath(os.fspath(filename))
            original(handler, seam._shadow_of(real), *args, **kwargs)

        self._patches.replace(logging.FileHandler, "__init__", init)

    def _redirect_summary_writer(self, module: ModuleType) -> None:
        original = module.SummaryWriter.__init__
        seam = self

        def init(writer: Any, log_dir: Any = None, *args: Any, **kwargs: Any) -> None:
            name = os.path.basename(os.fspath(log_dir)) if log_dir else "runs"
            original(writer, str(seam._shadow_dir / "tensorboard" / name), *args, **kwargs)

        self._patches.replace(module.SummaryWriter, "__init__", init)
