"""The hub of files: at the functions that save and load checkpoints, and at Python's ``open``.

Covered: ``torch.save`` and ``torch.load``, which also Lightning and Accelerate call, and
``safetensors``, with which Hugging Face's trainer saves weights.
"""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from types import ModuleType
from typing import Any

import torch

from autotune.inside.hubs.after_import import AfterImport
from autotune.inside.hubs.hub import Hub, overridden

SAFE = "safetensors.torch"
SAFE_FUNCTIONS = ("save_file", "save_model")
SAFE_NAMES = ("tensors", "model")  # of what is saved, where it is a keyword


@dataclass(slots=True)
class Save:
    """An object that the program saves; listeners may change where it goes.

    Attributes:
        what: The object.
        file: Where the program has ``torch.save`` write it; None for another function.
        where: Where it is really written.
    """

    what: Any
    file: Any
    where: Any

    @property
    def is_to_path(self) -> bool:
        """Whether the program names a path, not an open file."""
        return isinstance(self.file, (str, os.PathLike))


class SaveListener:
    """Acts where the program saves and loads; a method that is not overridden costs nothing.

    The methods run on whatever thread saves or loads.
    """

    def before_save(self, save: Save) -> None:
        """An object is about to be saved."""

    def after_save(self, save: Save) -> None:
        """An object has been saved; called for the innermost listener first."""

    def save_ended(self, save: Save) -> None:
        """An object has been saved, or that has failed; called last."""

    def place_to_load(self, path: str | os.PathLike[str]) -> str | os.PathLike[str]:
        """Return the path from which a checkpoint is to be read."""
        return path

    def place_to_open(self, path: str | bytes | os.PathLike[Any], mode: str) -> Any:  # noqa: ARG002
        """Return the path that ``open`` is to open in this mode.

        A class that overrides this has the hub replace ``open``.
        """
        return path


class SaveHub(Hub[SaveListener]):
    """Calls its listeners around each object that is saved, and asks them where to load from."""

    def __init__(self) -> None:
        self._before: tuple[Callable[[Save], None], ...] = ()
        self._after: tuple[Callable[[Save], None], ...] = ()
        self._ended: tuple[Callable[[Save], None], ...] = ()
        self._places: tuple[Callable[[Any], Any], ...] = ()
        self._openings: tuple[Callable[[Any, str], Any], ...] = ()
        self._replaces_open = False
        self._imports = AfterImport()
        super().__init__()

    def remove(self) -> None:
        """Put the functions back, whoever listens."""
        self._imports.remove()
        super().remove()
        self._replaces_open = False

    def _choose(self) -> None:
        inner_first = self._joined[::-1]
        self._before = overridden(self._joined, SaveListener, "before_save")
        self._after = overridden(inner_first, SaveListener, "after_save")
        self._ended = overridden(inner_first, SaveListener, "save_ended")
        self._places = overridden(self._joined, SaveListener, "place_to_load")
        self._openings = overridden(self._joined, SaveListener, "place_to_open")

    def _patch(self) -> None:
        if not self._patches.is_used:
            self._patch_checkpoints()
        if self._openings and not self._replaces_open:
            self._replaces_open = True
            opening = self._opening(builtins.open)
            for module in (builtins, io):  # pathlib opens by io.open
                self._patches.replace(module, "open", opening)

    def _patch_checkpoints(self) -> None:
        save, load = self._saving(torch.save), self._loading(torch.load)
        for module in (torch, torch.serialization):
            self._patches.replace(module, "save", save)
            self._patches.replace(module, "load", load)
        self._imports.wait_for(SAFE, self._patch_safetensors)

    def _patch_safetensors(self, module: ModuleType) -> None:
        for name in SAFE_FUNCTIONS:
            if hasattr(module, name):
                self._patches.replace(module, name, self._safe(getattr(module, name)))

    def _saving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
            call = Save(obj, f, f)
            self._around(call, lambda: original(obj, call.where, *args, **kwargs))

        return save

    def _loading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def load(f: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(f, (str, os.PathLike)):
                for place in self._places:
                    f = place(f)
            return original(f, *args, **kwargs)

        return load

    def _opening(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def opening(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, (str, bytes, os.PathLike)):
                for place in self._openings:
                    file = place(file, mode)
            return original(file, mode, *args, **kwargs)

        return opening

    def _safe(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def save(*args: Any, **kwargs: Any) -> None:
            named = next((kwargs[name] for name in SAFE_NAMES if name in kwargs), None)
            call = Save(args[0] if args else named, None, None)
            self._around(call, lambda: original(*args, **kwargs))

        return save

    def _around(self, call: Save, go: Callable[[], Any]) -> None:
        try:
            for tell in self._before:
                tell(call)
            go()
            for tell in self._after:
                tell(call)
        finally:
            for tell in self._ended:
                tell(call)
