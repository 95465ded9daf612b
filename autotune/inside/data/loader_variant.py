"""Loader variants: a loader under other options, and what the program gave it at first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import multiprocessing
from torch.utils.data import DataLoader

from autotune.program.config import KnobValue
from autotune.program.profile import LoaderFacts

# The attribute behind ``multiprocessing_context``, whose setter raises for 0 workers.
CONTEXT = "_DataLoader__multiprocessing_context"


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


def worker_attributes(
    facts: LoaderFacts, program: ProgramOptions, options: Mapping[str, KnobValue]
) -> dict[str, Any]:
    """Return the attributes of a loader that concern its workers and its copies to a device.

    Args:
        facts: The loader as the program built it.
        program: The objects that the program gave it.
        options: Values of the loader's knobs; those that are missing stay the program's.
    """
    workers = int(options.get("num_workers", facts.num_workers))
    prefetch = options.get("prefetch_factor", facts.prefetch_factor or 2)
    persistent = options.get("persistent_workers", facts.persistent_workers)
    attributes: dict[str, Any] = {
        "num_workers": workers,
        "timeout": program.timeout if workers else 0,  # torch refuses a timeout without workers
        "prefetch_factor": prefetch if workers else None,
        "pin_memory": options.get("pin_memory", facts.pin_memory),
        "persistent_workers": bool(persistent) and workers > 0,
        "in_order": options.get("in_order", facts.in_order),
        "worker_init_fn": program.worker_init_fn,
        CONTEXT: program.context,
    }
    if (threads := int(options.get("worker_threads", 1))) > 1:
        attributes["worker_init_fn"] = WorkerThreads(threads, program.worker_init_fn)
    if (method := options.get("start_method", facts.start_method)) != facts.start_method:
        attributes[CONTEXT] = multiprocessing.get_context(str(method))
    return attributes


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
