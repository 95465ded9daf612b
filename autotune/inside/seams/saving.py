"""The seam at files: what a trial writes goes to a shadow directory, the user's files stay.

Covered: ``torch.save`` anywhere; ``open`` for writing, ``Path.write_text`` and the like on files
that exist already below the program's directory; ``logging.FileHandler``; TensorBoard's
``SummaryWriter``. Not covered: files written by other libraries' own C code, and deletions. New
files are made where the program makes them, as in any run of it.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib.abc
import io
import logging
import os
import shutil
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from autotune.inside.seams.base import Patches

TENSORBOARD = "torch.utils.tensorboard.writer"


class SavingSeam:
    """Redirects what a trial writes.

    Args:
        shadow_dir: Where redirected files go.
        guarded: Directories whose existing files must stay as they are.
    """

    def __init__(self, shadow_dir: Path, guarded: Sequence[Path]) -> None:
        self._shadow_dir = shadow_dir
        self._guarded = [str(d.resolve()) + os.sep for d in guarded]
        self._shadows: dict[str, Path] = {}
        self._patches = Patches()

    def install(self) -> None:
        """Begin to redirect."""
        self._redirect_open()
        self._redirect_torch_save()
        self._redirect_file_handler()
        finder = _AfterImport(TENSORBOARD, self._redirect_summary_writer)
        sys.meta_path.insert(0, finder)

    def remove(self) -> None:
        """Put everything back as it was."""
        sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _AfterImport)]
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
        if not isinstance(path, str):
            return path
        real = os.path.realpath(path)
        if real in self._shadows:
            return str(self._shadows[real])
        if not set(mode) & set("wax+") or not self._is_guarded(real):
            return path
        shadow = self._shadow_of(real)
        if "w" not in mode:
            shutil.copyfile(real, shadow)
        self._shadows[real] = shadow
        return str(shadow)

    def _is_guarded(self, real: str) -> bool:
        if real.startswith(str(self._shadow_dir) + os.sep):
            return False
        return any(real.startswith(d) for d in self._guarded) and os.path.isfile(real)  # noqa: PTH113

    def _shadow_of(self, real: str) -> Path:
        self._shadow_dir.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(os.path.dirname(real).encode()).hexdigest()[:8]  # noqa: PTH120
        return self._shadow_dir / f"{digest}-{os.path.basename(real)}"  # noqa: PTH119

    def _redirect_torch_save(self) -> None:
        original = torch.save
        seam = self

        def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(f, (str, os.PathLike)):
                f = seam._shadow_of(os.path.realpath(os.fspath(f)))
            original(obj, f, *args, **kwargs)

        self._patches.replace(torch, "save", save)

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
            name = os.path.basename(os.fspath(log_dir)) if log_dir else "runs"  # noqa: PTH119
            original(writer, str(seam._shadow_dir / "tensorboard" / name), *args, **kwargs)

        self._patches.replace(module.SummaryWriter, "__init__", init)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls back once a module has been imported; importing it ourselves would cost seconds."""

    def __init__(self, name: str, then: Any) -> None:
        self._name = name
        self._then = then
        self._busy = False

    def find_spec(
        self,
        fullname: str,
        path: Any = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Wrap the loader of the one module waited for; leave all others to the next finder."""
        if fullname != self._name or self._busy:
            return None
        self._busy = True
        try:
            spec = find_spec(fullname)
        finally:
            self._busy = False
        if spec is None or spec.loader is None:
            return None
        execute, then = spec.loader.exec_module, self._then

        def exec_module(module: ModuleType) -> None:
            execute(module)
            then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
