"""A pass over a loader under certain options, and the passes that rest while others take turns."""

from __future__ import annotations

import os
from collections.abc import Iterator
from time import perf_counter
from typing import Any, Protocol

from torch.utils.data import DataLoader

from autotune.inside.data.built_loaders import BuiltLoaders
from autotune.inside.data.loader_options import RequestedOptions
from autotune.inside.data.loader_sizes import LoaderSizes
from autotune.inside.data.loader_variants import LoaderVariants
from autotune.inside.data.nested import first_tensor
from autotune.inside.data.resting import Resting

MOST_WORKERS = max(8, 2 * len(os.sched_getaffinity(0)))  # of all passes that are kept


class Loaders(Protocol):
    """What feeds need of the program's loaders; class ``Passes`` documents each member."""

    built: BuiltLoaders
    options: RequestedOptions
    sizes: LoaderSizes
    variants: LoaderVariants
    replays: bool

    def begin(self, loader: DataLoader[Any], written: DataLoader[Any]) -> Iterator[Any]:
        """Return PyTorch's iterator over a loader."""

    def hand_out(
        self, loader: DataLoader[Any], number: int, iteration: object = None, *, trains: bool
    ) -> None:
        """Note that a batch is handed to the program."""


class LoaderPass:
    """A pass over a loader, which begins when this is made: workers start then.

    A feed makes it and takes batches on the thread on which the program iterates.

    Args:
        loader: The loader with the options of the config.
        written: The loader that the program built.
        loaders: What is known of them.

    Attributes:
        loader: The loader that is iterated.
        iterator: PyTorch's iterator. It is never unset, because other threads may read its queues.
        begin_s: Seconds in which PyTorch's iterator was made and workers started.
        number: Batches that were taken.
        is_short: Whether the last batch is a smaller one that only occurs because autotune changed
            the batch size. The program alone might never meet one.
        is_target: Whether this is the training loader known from an earlier run.
    """

    def __init__(self, loader: DataLoader[Any], written: DataLoader[Any], loaders: Loaders) -> None:
        began = perf_counter()
        self.loader, self._written = loader, written
        self._sizes = loaders.sizes
        self.number = 0
        self.is_short = False
        self._batch_size = self._sizes.batch_size(loader)
        facts = loaders.built.facts(written)
        self.is_target = loaders.built.is_target(written)
        self._short_batch = (
            None if facts.drop_last or facts.iterable else self._sizes.round_of(loader)
        )
        self.iterator: Iterator[Any] = loaders.begin(loader, written)
        self.begin_s = perf_counter() - began

    def take(self) -> tuple[Any, int]:
        """Return the next batch and its samples: the loader's batch size, or counted in tensors.

        A loader without a batch size leaves only the tensors. The last batch of an epoch may be
        smaller, which follows from the length of the dataset.

        Raises:
            StopIteration: at the end of the data.
        """
        batch = next(self.iterator)
        self.number += 1
        self.is_short = False
        if self._batch_size is None:
            tensor = first_tensor(batch)
            return batch, int(tensor.shape[0]) if tensor is not None else 1
        if self._short_batch is None or self.number % self._short_batch:
            return batch, self._batch_size
        dataset_len = self._sizes.dataset_len(self._written) or self._batch_size
        samples = (dataset_len - 1) % self._batch_size + 1
        is_written_size = self._batch_size == self._sizes.batch_size(self._written)
        self.is_short = samples < self._batch_size and not is_written_size
        return batch, samples

    def end(self) -> None:
        """End before the data end; workers end or persist, as they would then."""
        self.iterator = iter(())


class RestingPasses:
    """The passes of one feed whose options do not have their turn; their workers are stopped.

    Args:
        resting: Stops and wakes workers.
    """

    def __init__(self, resting: Resting) -> None:
        self._resting = resting
        self._passes: dict[DataLoader[Any], LoaderPass] = {}

    def change(self, present: LoaderPass, loader: DataLoader[Any]) -> LoaderPass | None:
        """Let the present pass rest; return the one over *loader*, awake, if it has rested.

        Those that have rested longest are dropped while too many workers rest.
        """
        self._resting.stop(present.iterator)
        self._passes[present.loader] = present
        wanted = self._passes.pop(loader, None)
        most_workers = MOST_WORKERS - loader.num_workers
        while self._passes and sum(one.num_workers for one in self._passes) > most_workers:
            self._wake(self._passes.pop(next(iter(self._passes))))
        if wanted is not None:
            self._wake(wanted)
        return wanted

    def drop(self) -> None:
        """Let all go: torch would wait in vain for the end of workers that are stopped."""
        while self._passes:
            self._wake(self._passes.popitem()[1])

    def _wake(self, one: LoaderPass) -> None:
        self._resting.wake(one.iterator)
