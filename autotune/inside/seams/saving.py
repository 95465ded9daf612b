"""The seam at the functions with which programs save checkpoints.

Covered: ``torch.save``, which also Lightning and Accelerate call, and ``safetensors``, with which
Hugging Face's trainer saves weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from types import ModuleType
from typing import Any

import torch

from autotune.inside.seams.after_import import AfterImport
from autotune.inside.seams.base import Patches, Seam

SAFE = "safetensors.torch"
SAFE_FUNCTIONS = ("save_file", "save_model")
NAMES = ("obj", "tensors", "model")  # of what is saved, where it is a keyword
Around = Callable[[Any, Any], AbstractContextManager[None]]


class SavingSeam(Seam):
    """Enters a context around each object that the program saves.

    ``SeamSet`` installs it for a listener, before the program starts.

    Args:
        around: Returns the context of an object, which ends when the object is written. It also
            gets the file that ``torch.save`` writes, or None.
    """

    def __init__(self, around: Around) -> None:
        self._around = around
        self._patches = Patches()
        self._imports = AfterImport()

    def install(self) -> None:
        """Patch the functions; those of a library once the program imports it."""
        self._watch(torch, ("save",))
        self._imports.wait_for(SAFE, lambda module: self._watch(module, SAFE_FUNCTIONS))

    def remove(self) -> None:
        """Put the functions back."""
        self._imports.remove()
        super().remove()

    def _watch(self, module: ModuleType, names: Sequence[str]) -> None:
        for name in names:
            if hasattr(module, name):
                _replace(self._patches, module, name, self._around)


def _replace(patches: Patches, module: ModuleType, name: str, around: Around) -> None:
    original = getattr(module, name)

    @wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        what = args[0] if args else next((kwargs[n] for n in NAMES if n in kwargs), None)
        where = (args[1] if len(args) > 1 else kwargs.get("f")) if name == "save" else None
        with around(what, where):
            return original(*args, **kwargs)

    patches.replace(module, name, save)
