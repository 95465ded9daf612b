"""Loader options: what the program gave a loader, what a config requests, and what follows.

What follows are attributes of the loader. They are written to ``vars(loader)``, because
DataLoader's ``__setattr__`` refuses some of these names after construction.
"""

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
        self._is_held = self._is_behind = False

    def request(self, **options: KnobValue) -> None:
        """Request options, which replace earlier values of the same names.

        Feeds see them at their next batch, or after ``release()`` if they are held.
        """
        self.values.update(options)
        self._is_behind = True
        if not self._is_held:
            self.release()

    def hold(self) -> None:
        """Keep requested options from the feeds until ``release()``.

        A config sets its options one by one, and a feed on another thread must not begin with only
        some of them.
        """
        self._is_held = True

    def release(self) -> None:
        """Let feeds see the requested options from their next batch on."""
        self._is_held = False
        if self._is_behind:
            self._is_behind = False
            self.renew()

    def renew(self) -> None:
        """Have feeds take their loaders anew with their next batch."""
        self.version += 1

    @property
    def change_workers(self) -> bool:
        """Whether a config decides on worker processes."""
        return "num_workers" in self.values


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
        options: What a config requests; what is missing stays the program's. Workers are kept
            between epochs, but those in the program's own number are kept as the program does.
    """
    workers = int(options.get("num_workers", facts.num_workers))
    prefetch = options.get("prefetch_factor", facts.prefetch_factor or 2)
    is_kept = workers > 0 and (workers != facts.num_workers or facts.persistent_workers)
    attributes: dict[str, Any] = {
        "num_workers": workers,
        "timeout": program.timeout if workers else 0,  # torch refuses a timeout without workers
        "prefetch_factor": prefetch if workers else None,
        "pin_memory": options.get("pin_memory", facts.pin_memory),
        "persistent_workers": is_kept,
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


def with_attributes(loader: DataLoader[Any], changes: Mapping[str, Any]) -> DataLoader[Any]:
    """Return a copy of a loader with other attributes, which is not built anew."""
    copy = object.__new__(type(loader))
    vars(copy).update(vars(loader))
    vars(copy).update(changes, _iterator=None)
    return copy


def end_workers(loader: DataLoader[Any]) -> None:
    """Drop a loader's persistent workers; they end when nothing iterates over them."""
    vars(loader)["_iterator"] = None
