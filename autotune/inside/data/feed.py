"""Feed: the iterator that the program gets from a DataLoader.

It hands out the loader's batches, times how long the program waits for them, and can start over at
the end of the data, so that training goes on for as long as it is measured.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from threading import get_ident
from time import perf_counter
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from autotune.inside.data.nested import first_tensor, map_tensors, tensors_in
from autotune.inside.data.resting import Resting
from autotune.program.profile import LoaderFacts

MOST_WORKERS = max(8, 2 * len(os.sched_getaffinity(0)))  # of all passes that are kept
# What a pass over a loader consists of, besides the feed that it belongs to
PASS = ("_active", "_inner", "_batch_number", "_batch_size", "_short_batch", "_begun")


class _Listener(Protocol):
    """The calls that a feed makes to its listener; class ``Listener`` documents each of them."""

    is_endless: bool

    def before_batch(self, feed: Feed) -> None: ...

    def after_batch(self, feed: Feed, batch: Any, samples: int, wait_s: float) -> None: ...

    def trains_on(self, feed: Feed) -> bool: ...

    def starts_over(self, feed: Feed) -> bool: ...

    def cuts(self, feed: Feed) -> bool: ...

    def epoch_ended(self, feed: Feed) -> None: ...

    def pass_ended(self, feed: Feed) -> None: ...


class _Loaders(Protocol):
    """The members of the loader seam that a feed needs; ``LoaderSeam`` documents each of them."""

    version: int
    replays: bool
    keeps: bool
    resting: Resting

    def variant(self, loader: DataLoader[Any]) -> DataLoader[Any]: ...

    def iterate(self, loader: DataLoader[Any], own: DataLoader[Any]) -> Iterator[Any]: ...

    def end_workers(self, loader: DataLoader[Any]) -> None: ...

    def hand_out(
        self, loader: DataLoader[Any], number: int, iteration: object = None, *, trains: bool
    ) -> None: ...

    def is_target(self, loader: DataLoader[Any]) -> bool: ...

    def facts(self, loader: DataLoader[Any]) -> LoaderFacts: ...

    def length(self, loader: DataLoader[Any]) -> int | None: ...

    def length_read(self, loader: DataLoader[Any]) -> int | None: ...

    def dataset_len(self, loader: DataLoader[Any]) -> int | None: ...

    def batch_size(self, loader: DataLoader[Any]) -> int | None: ...

    def round_of(self, loader: DataLoader[Any]) -> int | None: ...


class Feed:
    """Hands out the batches of a loader, and swaps the loader underneath when its options change.

    The loader seam returns one from ``DataLoader.__iter__``; the program calls it on the thread
    that iterates the loader, which need not be the thread that trains. Unless the listener asks for
    more, it behaves as PyTorch's own iterator: the same batches, random numbers and end.

    Attributes:
        loader: The loader that the program iterates.
        begin_s: Seconds in which PyTorch's iterator was made and workers started, at the latest
            beginning.
        handed: Batches that the program got in this pass.
        is_mixed: Whether the batches of this pass are not one pass over the program's data: the
            loader was swapped or has another length, a batch was repeated, or autotune took
            batches.
        is_short: Whether the last batch is a smaller one that only occurs because autotune changed
            the batch size. The program alone might never meet one.
        wants_gradients: Whether gradients were enabled when the program began to iterate.
        thread: Id of the thread that asked for the last batch.
    """

    def __init__(self, loader: DataLoader[Any], seam: _Loaders, listener: _Listener) -> None:
        self.loader = loader
        self.begin_s = 0.0
        self.handed = 0
        self.is_short = False
        self._has_started_over = False
        self._seam = seam
        self._listener = listener
        self._version = seam.version
        self._kept: dict[DataLoader[Any], dict[str, Any]] = {}
        self.wants_gradients = torch.is_grad_enabled()
        self.thread = get_ident()
        self._cached: _Cached | None = None
        self._active = seam.variant(loader) if listener.trains_on(self) else loader
        self.is_mixed = seam.length(self._active) != seam.length(loader)
        self._begin()

    def __iter__(self) -> Feed:
        return self

    def __del__(self) -> None:
        self._drop_kept()  # torch would wait in vain for the end of workers that are stopped

    def __len__(self) -> int:
        return len(self._active)

    def __next__(self) -> Any:
        listener, seam = self._listener, self._seam
        self.thread = get_ident()
        listener.before_batch(self)
        if not listener.is_endless and listener.cuts(self):
            self._end()
            raise StopIteration
        is_steered = listener.trains_on(self)
        if is_steered and self._version != seam.version:
            self._swap()
        asked = perf_counter()
        if is_steered and seam.replays:
            self.is_mixed = True
            self._cached = self._cached or _Cached(*self._next(starts_over=True))
            batch, samples = self._cached.batch(), self._cached.samples
        else:
            self._cached = None
            starts_over = is_steered and (listener.is_endless or listener.starts_over(self))
            batch, samples = self._next(starts_over=starts_over)
        self.handed += 1
        trains = is_steered or self._is_target
        seam.hand_out(self._active, self._batch_number, trains=trains)
        listener.after_batch(self, batch, samples, perf_counter() - asked)
        return batch

    def take(self) -> int:
        """Take a batch as the program would, starting over at the end; return its samples.

        The program does not get the batch, so the pass is mixed from here on.
        """
        self.is_mixed = True
        return self._next(starts_over=True)[1]

    @property
    def limit(self) -> int | None:
        """The number of batches that the program takes for one pass; None if that is unknown.

        It is the length that the program last read from this loader, even if the batch size has
        changed since. If the program has read none, it is the loader's present length.
        """
        return self._seam.length_read(self.loader)

    @property
    def is_behind(self) -> bool:
        """Whether the loader's options changed since this feed took its loader.

        If the feed trains, it takes the new variant with its next batch.
        """
        return self._version != self._seam.version

    def goes_beyond(self) -> bool:
        """Return whether the program got more batches than it takes for one pass.

        Without a known length, return whether the feed has started over at the end of its data.
        """
        limit = self.limit
        return self._has_started_over if limit is None else self.handed > limit

    def __getattr__(self, name: str) -> Any:
        """Return attributes of PyTorch's iterator, since a program may read its workers there."""
        if name.startswith("__") or "_inner" not in vars(self):
            raise AttributeError(name)
        return getattr(self._inner, name)

    @property
    def num_workers(self) -> int:
        """The number of worker processes that load now."""
        return self._active.num_workers

    @property
    def buffered_batches(self) -> int:
        """The most batches that the workers prefetch together; 0 without workers."""
        return self._active.num_workers * (self._active.prefetch_factor or 0)

    @property
    def batches_per_epoch(self) -> int | None:
        """Batches from one beginning to the next, under the present options.

        None for data without a length.
        """
        return self._seam.length(self._active)

    @property
    def samples_per_epoch(self) -> int | None:
        """Samples from one beginning to the next; None if data or batches have no known size."""
        batches, size = self.batches_per_epoch, self._seam.batch_size(self._active)
        if batches is None or size is None:
            return None
        whole = batches * size
        if self._seam.facts(self.loader).drop_last:
            return whole
        return min(whole, self._seam.dataset_len(self.loader) or whole)

    def _next(self, *, starts_over: bool) -> tuple[Any, int]:
        """Return the next batch and its sample count; start over at the data's end if wanted."""
        try:
            batch = next(self._inner)
        except StopIteration:
            if not starts_over:
                self._listener.pass_ended(self)
                raise
            self._listener.epoch_ended(self)
            self._has_started_over = True
            self._begin()
            batch = next(self._inner)
        return batch, self._count(batch)

    def _count(self, batch: Any) -> int:
        """Return the samples in a batch: the loader's batch size, or counted in the tensors.

        A loader without a batch size leaves only the tensors. The last batch of an epoch may be
        smaller, which follows from the length of the dataset.
        """
        self._batch_number += 1
        self.is_short = False
        if self._batch_size is None:
            tensor = first_tensor(batch)
            return int(tensor.shape[0]) if tensor is not None else 1
        if self._short_batch is None or self._batch_number % self._short_batch:
            return self._batch_size
        dataset_len = self._seam.dataset_len(self.loader) or self._batch_size
        samples = (dataset_len - 1) % self._batch_size + 1
        is_own_size = self._batch_size == self._seam.batch_size(self.loader)
        self.is_short = samples < self._batch_size and not is_own_size
        return samples

    def _begin(self) -> None:
        """Begin to iterate the loader, and note how long that took: workers start here."""
        self._begun = perf_counter()
        self._batch_number = 0
        self._batch_size = self._seam.batch_size(self._active)
        facts = self._seam.facts(self.loader)
        self._is_target = self._seam.is_target(self.loader)
        self._short_batch = (
            None if facts.drop_last or facts.iterable else self._seam.round_of(self._active)
        )
        self._inner: Iterator[Any] = self._seam.iterate(self._active, self.loader)
        self.begin_s = perf_counter() - self._begun

    def _end(self) -> None:
        """End the pass before the data end; workers end or persist, as they would then."""
        self._inner = iter(())
        self._listener.pass_ended(self)

    def _swap(self) -> None:
        """Replace the loader by its variant under the present options and begin to iterate it.

        The old workers end before new ones start, because both at once would slow the new ones
        down.
        """
        self._version = self._seam.version
        variant = self._seam.variant(self.loader)
        if self.handed:
            self.is_mixed = True
        else:
            self.is_mixed = self._seam.length(variant) != self._seam.length(self.loader)
        if self._seam.keeps:
            self._take_up(variant)
            return
        self._drop_kept()
        self._inner = iter(())  # never unset, because other threads may read its queues
        self._seam.end_workers(self._active)
        self._active = variant
        self._begin()

    def _limit_kept(self, most_workers: int) -> None:
        """Drop the passes that have rested longest, until no more workers than these rest."""
        while self._kept and sum(one.num_workers for one in self._kept) > most_workers:
            oldest = next(iter(self._kept))
            self._seam.resting.wake(self._kept.pop(oldest)["_inner"])

    def _drop_kept(self) -> None:
        kept = vars(self).get("_kept", {})  # none yet if the feed could not be made
        while kept:
            self._seam.resting.wake(kept.popitem()[1]["_inner"])

    def _take_up(self, variant: DataLoader[Any]) -> None:
        """Let the present pass rest, and go on with that of the new options where it had stopped.

        A pass that has not begun yet begins here.
        """
        if variant is self._active:
            return
        resting = self._seam.resting
        resting.stop(self._inner)
        self._kept[self._active] = {name: vars(self)[name] for name in PASS}
        kept = self._kept.pop(variant, None)
        self._limit_kept(MOST_WORKERS - variant.num_workers)
        if kept is None:
            self._active = variant
            self._begin()
        else:
            vars(self).update(kept)
            resting.wake(self._inner)


class _Cached:
    """One batch that is handed out for many steps, to measure training without loading.

    ``Feed`` holds it and calls it on the thread that takes batches. Each step gets new containers,
    whose entries the program may replace or remove. Tensors are shared until the program changes
    one in place; from then on each step gets copies of the original batch.
    """

    def __init__(self, batch: Any, samples: int) -> None:
        self.samples = samples
        self._master = copy.deepcopy(batch)
        self._hand_out(batch)

    def batch(self) -> Any:
        """Return the batch in new containers; a deep copy if the last one was changed in place."""
        if self._versions != _versions(self._batch):
            self._hand_out(copy.deepcopy(self._master))
        return map_tensors(lambda tensor: tensor, self._batch)

    def _hand_out(self, batch: Any) -> None:
        self._batch = batch
        self._versions = _versions(batch)


def _versions(batch: Any) -> list[int]:
    """Return how often each tensor of a batch was changed in place."""
    return [t._version for t in tensors_in(batch)]  # noqa: SLF001 - autograd's own counter


def steps_per_epoch(feed: Feed, batches_per_step: int) -> int | None:
    """Return the optimizer steps between two beginnings of the data; None if that is unknown.

    Args:
        feed: Of the training loader.
        batches_per_step: How many batches each optimizer step uses.
    """
    batches = feed.batches_per_epoch
    return None if batches is None else max(1, batches // batches_per_step)
