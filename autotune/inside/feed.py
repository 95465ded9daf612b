"""Feed: the iterator that the program gets from a DataLoader; for training it never ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from autotune.inside.listener import Listener

if TYPE_CHECKING:
    from autotune.inside.seams.loader import LoaderSeam


class Feed:
    """Hands out the batches of a loader and swaps the loader underneath when options change.

    Until the listener says otherwise it is PyTorch's own iterator with a stopwatch: same batches,
    same random numbers, same end.

    Attributes:
        loader: The loader that the program iterates.
        starts: How often iteration over the data has begun.
        start_s: Seconds from the last beginning to its first batch.
        wants_gradients: Gradients were enabled when the program began to iterate.
    """

    def __init__(self, loader: DataLoader[Any], seam: LoaderSeam, listener: Listener) -> None:
        self.loader = loader
        self.starts = 0
        self.start_s = 0.0
        self._seam = seam
        self._listener = listener
        self._version = seam.version
        self.wants_gradients = torch.is_grad_enabled()
        self._active = seam.variant(loader) if listener.never_ends(self) else loader
        self._begin()

    def __iter__(self) -> Feed:
        return self

    def __len__(self) -> int:
        return len(self._active)

    def __next__(self) -> Any:
        self._listener.before_batch(self)
        endless = self._listener.never_ends(self)
        if endless and self._version != self._seam.version:
            self._swap()
        asked = perf_counter()
        try:
            batch = next(self._inner)
        except StopIteration:
            if not endless:
                raise
            self._listener.epoch_ended(self)
            self._begin()
            batch = next(self._inner)
        self._note_start()
        self._listener.after_batch(self, self._count(batch), perf_counter() - asked)
        return batch

    @property
    def num_workers(self) -> int:
        """Workers that load now."""
        return self._active.num_workers

    @property
    def buffered_batches(self) -> int:
        """Batches that workers hold ready at most."""
        return self._active.num_workers * (self._active.prefetch_factor or 0)

    @property
    def batches_per_epoch(self) -> int | None:
        """Batches between two beginnings, None for data without a length."""
        try:
            return len(self._active)
        except TypeError:
            return None

    @property
    def samples_per_epoch(self) -> int | None:
        """Samples between two beginnings, None where data or batches have no known size."""
        batches, size = self.batches_per_epoch, self._active.batch_size
        if batches is None or size is None:
            return None
        facts = self._seam.facts(self.loader)
        whole = batches * size
        return whole if facts.drop_last else min(whole, facts.dataset_len or whole)

    def _count(self, batch: Any) -> int:
        """Samples in a batch: by the loader's own size where it has one, else by the tensors."""
        size, facts = self._active.batch_size, self._seam.facts(self.loader)
        self._batch_number += 1
        if size is None:
            tensor = first_tensor(batch)
            return int(tensor.shape[0]) if tensor is not None else 1
        if facts.drop_last or facts.iterable or self._batch_number != self.batches_per_epoch:
            return size
        return ((facts.dataset_len or size) - 1) % size + 1

    def _begin(self) -> None:
        self._begun = perf_counter()
        self._fresh = True
        self._batch_number = 0
        self._inner: Iterator[Any] = self._seam.iterate(self._active)
        self.starts += 1

    def _note_start(self) -> None:
        if self._fresh:
            self._fresh = False
            self.start_s = perf_counter() - self._begun

    def _swap(self) -> None:
        """End the old workers before new ones start: both at once would disturb the new ones."""
        self._version = self._seam.version
        variant = self._seam.variant(self.loader)
        del self._inner
        self._seam.end_workers(self._active)
        self._active = variant
        self._begin()


def first_tensor(batch: Any) -> torch.Tensor | None:
    """Return the first tensor with a batch dimension in nested lists, tuples and mappings."""
    if isinstance(batch, torch.Tensor):
        return batch if batch.dim() else None
    parts: Any = ()
    if isinstance(batch, Mapping):
        parts = batch.values()
    elif isinstance(batch, (list, tuple)):
        parts = batch
    return next((t for t in map(first_tensor, parts) if t is not None), None)


def steps_per_epoch(feed: Feed, batches_per_step: int) -> int | None:
    """Return the optimizer steps between two beginnings, None where that is unknown."""
    batches = feed.batches_per_epoch
    return None if batches is None else max(1, batches // batches_per_step)
