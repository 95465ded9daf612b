"""Loader variants: a loader under other options, and what the program gave it at first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader


@dataclass(frozen=True)
class ProgramOptions:
    """Objects that the program gave its loader; the facts hold plain values only."""

    batch_sampler: Any
    timeout: float
    context: Any
    worker_init_fn: Callable[[int], None] | None


@dataclass(frozen=True)
class Variant:
    """A copy of a loader with other options.

    Attributes:
        variant: The copy.
        version: The version of the options that it has.
        attributes: The original loader's attributes when the copy was made.
    """

    variant: DataLoader[Any]
    version: int
    attributes: dict[str, Any]

    def is_of(self, loader: DataLoader[Any], version: int) -> bool:
        """Tell whether the copy is current: neither options nor loader changed since."""
        now = without_iterator(loader)
        return (
            self.version == version
            and now.keys() == self.attributes.keys()
            and all(now[name] is value for name, value in self.attributes.items())
        )


def without_iterator(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return a loader's attributes without those that torch sets during iteration."""
    noted = {"_iterator", "_IterableDataset_len_called"}
    return {name: value for name, value in vars(loader).items() if name not in noted}


@dataclass(frozen=True)
class WorkerThreads:
    """A ``worker_init_fn`` that sets torch's threads and then calls the program's own.

    PyTorch calls it in each worker process. It is a class because spawned workers get it pickled,
    which a local function does not allow.

    Attributes:
        threads: Threads per worker.
        own: The program's ``worker_init_fn``; None without one.
    """

    threads: int
    own: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        """Set up the worker process that calls this; *worker* is its number."""
        torch.set_num_threads(self.threads)
        if self.own is not None:
            self.own(worker)
