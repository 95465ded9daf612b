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
from types import ModuleType
from typing import Any

import torch

from autotune.inside.hubs.after_import import AfterImport
from autotune.inside.hubs.hub import Hub

SAFE = "safetensors.torch"
SAFE_FUNCTIONS = ("save_file", "save_model")
SAFE_NAMES = ("tensors", "model")  # of what is saved, where it is a keyword
Call = Callable[..., Any]


@dataclass(slots=True)
class Save:
    """An object that the program saves; listeners may change where it goes.

    Attributes:
        what: The object.
        where: The path or open file to which ``torch.save`` writes it; None for another function.
    """

    what: Any
    where: Any


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

    listens = SaveListener
    inner_first = ("after_save", "save_ended")

    def __init__(self) -> None:
        self._replaces_open = False
        self._imports = AfterImport()
        super().__init__()

    def remove(self) -> None:
        """Put the functions back, whoever listens."""
        self._imports.remove()
        super().remove()
        self._replaces_open = False

    def _patch(self) -> None:
        if not self._patches.is_used:
            self._patches.wrap(torch, "save", self._save)
            self._patches.wrap(torch, "load", self._load)
            self._patches.replace(torch.serialization, "save", torch.save)
            self._patches.replace(torch.serialization, "load", torch.load)
            self._imports.wait_for(SAFE, self._patch_safetensors)
        if self.told["place_to_open"] and not self._replaces_open:
            self._replaces_open = True
            self._patches.wrap(builtins, "open", self._open)
            self._patches.replace(io, "open", builtins.open)  # by which pathlib opens

    def _patch_safetensors(self, module: ModuleType) -> None:
        for name in SAFE_FUNCTIONS:
            if hasattr(module, name):
                self._patches.wrap(module, name, self._save_safely)

    def _save(self, original: Call, obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        call = Save(obj, f)
        self._around(call, lambda: original(obj, call.where, *args, **kwargs))

    def _load(self, original: Call, f: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(f, (str, os.PathLike)):
            for place in self.told["place_to_load"]:
                f = place(f)
        return original(f, *args, **kwargs)

    def _open(self, original: Call, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, (str, bytes, os.PathLike)):
            for place in self.told["place_to_open"]:
                file = place(file, mode)
        return original(file, mode, *args, **kwargs)

    def _save_safely(self, original: Call, *args: Any, **kwargs: Any) -> None:
        named = next((kwargs[name] for name in SAFE_NAMES if name in kwargs), None)
        call = Save(args[0] if args else named, None)
        self._around(call, lambda: original(*args, **kwargs))

    def _around(self, call: Save, go: Callable[[], Any]) -> None:
        try:
            for tell in self.told["before_save"]:
                tell(call)
            go()
            for tell in self.told["after_save"]:
                tell(call)
        finally:
            for tell in self.told["save_ended"]:
                tell(call)
