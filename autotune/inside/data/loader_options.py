"""Loader options: what a config requests of the training loader.

A loader's attributes are written to ``vars(loader)``, because DataLoader's ``__setattr__`` refuses
some of these names after construction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import multiprocessing
from torch.utils.data import DataLoader

from autotune.program.applied_config import LOADER_OPTIONS
from autotune.program.config import KnobValue

# The attribute behind ``multiprocessing_context``, whose setter raises for 0 workers.
CONTEXT = "_DataLoader__multiprocessing_context"


class RequestedOptions:
    """The options that a config requests for the training loader, by DataLoader's names.

    ``Steering`` requests them on the main thread. Feeds compare the version on whatever thread the
    program iterates.

    Attributes:
        values: What has been requested so far.
        version: Counts the changes; a feed with an older version is behind.
    """

    def __init__(self) -> None:
        self.values: dict[str, KnobValue] = {}
        self.version = 0

    @property
    def settings(self) -> list[str]:
        """The settings that request them, as users know these."""
        settings = {**LOADER_OPTIONS, "devices": "world_size"}
        return [name for name, option in settings.items() if option in self.values]

    def request(self, **options: KnobValue) -> None:
        """Request options, which replace earlier values of the same names; feeds see them next."""
        self.values.update(options)
        self.version += 1


# A class, because spawned workers get it pickled, which a local function does not allow.
@dataclass(frozen=True)
class WorkerThreads:
    """A ``worker_init_fn`` that sets torch's threads and then calls the program's."""

    threads: int
    written: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        """Set up the worker process that calls this; *worker* is its number."""
        torch.set_num_threads(self.threads)
        if self.written is not None:
            self.written(worker)


def start_method(context: Any = None) -> str:
    """Return the start method of worker processes: ``fork``, ``spawn`` or ``forkserver``.

    Reads the process's default without fixing it, because the program may still choose another.

    Args:
        context: The loader's multiprocessing context; None for the process's default.
    """
    if context is not None:
        return str(context.get_start_method())
    chosen = multiprocessing.get_start_method(allow_none=True)
    return str(chosen or multiprocessing.get_all_start_methods()[0])  # the first is the default


def with_attributes(loader: DataLoader[Any], changes: Mapping[str, Any]) -> DataLoader[Any]:
    """Return a copy of a loader with other attributes, which is not built anew."""
    copy = object.__new__(type(loader))
    vars(copy).update(vars(loader))
    vars(copy).update(changes, _iterator=None)
    return copy
