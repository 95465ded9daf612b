"""The seam at the functions with which programs save checkpoints.

Covered: ``torch.save``, which also Lightning and Accelerate call, and ``safetensors``, with which
Hugging Face's trainer saves weights.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from types import ModuleType
from typing import Any

import torch

from autotune.inside.seams.after_import import AfterImport
from autotune.inside.seams.base import Patches

SAFE = "safetensors.torch"
SAFE_FUNCTIONS = ("save_file", "save_model")


def watch_saving(around: Callable[[Any], AbstractContextManager[None]]) -> None:
    """Enter a context with each object that the program saves, for good.

    Args:
        around: Returns the context, which ends when the object is written.
    """
    _watch(torch, "save", around)
    AfterImport().wait_for(SAFE, lambda module: _watch_all(module, around))


def _watch_all(module: ModuleType, around: Callable[[Any], AbstractContextManager[None]]) -> None:
    for name in SAFE_FUNCTIONS:
        if hasattr(module, name):
            _watch(module, name, around)


def _watch(
    module: ModuleType, name: str, around: Callable[[Any], AbstractContextManager[None]]
) -> None:
    original = getattr(module, name)

    @wraps(original)
    def save(what: Any, *args: Any, **kwargs: Any) -> Any:
        with around(what):
            return original(what, *args, **kwargs)

    Patches().replace(module, name, save)
