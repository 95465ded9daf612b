"""Feed: the iterator that the program gets from a DataLoader.

It hands out the loader's batches, times how long the program waits for them, and can start over at
the end of the data, so that training goes on for as long as it is measured.
"""

from __future__ import annotations

import copy
from threading import get_ident
from time import perf_counter
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from autotune.inside.data.loader_options import end_workers
from autotune.inside.data.loader_pass import LoaderPass, Loaders, RestingPasses
from autotune.inside.data.nested import map_tensors, tensors_in


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


class Feed:
    """Hands out the batches of a loader, and swaps the loader underneath when its options change.

    ``Passes`` makes one when the program begins to iterate a loader; the program calls it on the
    thread that iterates, which need not be the thread that trains. Unless the listener asks for
    more, it behaves as PyTorch's own iterator: the same batches, random numbers and end.

    Attributes:
        loader: The loader that the program iterates.
        handed: Batches that the program got in this pass.
        is_mixed: Whether the batches of this pass are not one pass over the program's data: the
            loader was swapped or has another length, a batch was repeated, or autotune took
            batches.
        wants_gradients: Whether gradients were enabled when the program began to iterate.
        thread: Id of the thread that asked for the last batch.
    """

    def __init__(self, loader: DataLoader[Any], loaders: Loaders, listener: _Listener) -> None:
        self.loader = loader
        self.handed = 0
        self._has_started_over = False
        self._loaders = loaders
        self._listener = listener
        self._version = loaders.options.version
        self._resting = RestingPasses(loaders.variants.resting)
        self.wants_gradients = torch.is_grad_enabled()
        self.thread = get_ident()
        self._cached: _Cached | None = None
        first = loaders.variants.of(loader) if listener.trains_on(self) else loader
        self.is_mixed = self._differs(first)
        self._pass = self._begin(first)

    def __iter__(self) -> Feed:
        return self

    def __del__(self) -> None:
        if "_resting" in vars(self):  # not yet if the feed could not be made
            self._resting.drop()

    def __len__(self) -> int:
        return len(self._pass.loader)

    def __next__(self) -> Any:
        listener = self._listener
        self.thread = get_ident()
        listener.before_batch(self)
        if not listener.is_endless and listener.cuts(self):
            self._pass.end()
            listener.pass_ended(self)
            raise StopIteration
        is_steered = listener.trains_on(self)
        if is_steered and self._version != self._loaders.options.version:
            self._swap()
        asked = perf_counter()
        if is_steered and self._loaders.replays:
            self.is_mixed = True
            self._cached = self._cached or _Cached(*self._next(starts_over=True))
            batch, samples = self._cached.batch(), self._cached.samples
        else:
            self._cached = None
            starts_over = is_steered and (listener.is_endless or listener.starts_over(self))
            batch, samples = self._next(starts_over=starts_over)
        self.handed += 1
        present = self._pass
        trains = is_steered or present.is_target
        self._loaders.hand_out(present.loader, present.number, trains=trains)
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
        return self._loaders.sizes.length_read(self.loader)

    @property
    def is_behind(self) -> bool:
        """Whether the loader's options changed since this feed took its loader.

        If the feed trains, it takes the new variant with its next batch.
        """
        return self._version != self._loaders.options.version

    def goes_beyond(self) -> bool:
        """Return whether the program got more batches than it takes for one pass.

        Without a known length, return whether the feed has started over at the end of its data.
        """
        limit = self.limit
        return self._has_started_over if limit is None else self.handed > limit

    def __getattr__(self, name: str) -> Any:
        """Return attributes of PyTorch's iterator, since a program may read its workers there."""
        if name.startswith("__") or "_pass" not in vars(self):
            raise AttributeError(name)
        return getattr(self._pass.iterator, name)

    @property
    def begin_s(self) -> float:
        """Seconds in which PyTorch's iterator was made and workers started."""
        return self._pass.begin_s

    @property
    def is_short(self) -> bool:
        """Whether the last batch is a smaller one that the program alone might never meet."""
        return self._pass.is_short

    @property
    def num_workers(self) -> int:
        """The number of worker processes that load now."""
        return self._pass.loader.num_workers

    @property
    def buffered_batches(self) -> int:
        """The most batches that the workers prefetch together; 0 without workers."""
        return self.num_workers * (self._pass.loader.prefetch_factor or 0)

    @property
    def samples_per_epoch(self) -> int | None:
        """Samples from one beginning to the next, under the present options.

        None if data or batches have no known size.
        """
        sizes, loader = self._loaders.sizes, self._pass.loader
        batches, size = sizes.length(loader), sizes.batch_size(loader)
        if batches is None or size is None:
            return None
        whole = batches * size
        if self._loaders.built.facts(self.loader).drop_last:
            return whole
        return min(whole, sizes.dataset_len(self.loader) or whole)

    def _next(self, *, starts_over: bool) -> tuple[Any, int]:
        """Return the next batch and its sample count; start over at the data's end if wanted."""
        try:
            return self._pass.take()
        except StopIteration:
            if not starts_over:
                self._listener.pass_ended(self)
                raise
            self._listener.epoch_ended(self)
            self._has_started_over = True
            self._pass = self._begin(self._pass.loader)
            return self._pass.take()

    def _begin(self, loader: DataLoader[Any]) -> LoaderPass:
        return LoaderPass(loader, self.loader, self._loaders)

    def _differs(self, variant: DataLoader[Any]) -> bool:
        sizes = self._loaders.sizes
        return sizes.length(variant) != sizes.length(self.loader)

    def _swap(self) -> None:
        """Go on with the loader's variant under the present options.

        If configs take turns, the present pass rests, and that of the new options goes on where it
        had stopped. Otherwise the old workers end before new ones start, because both at once would
        slow the new ones down.
        """
        self._version = self._loaders.options.version
        variant = self._loaders.variants.of(self.loader)
        self.is_mixed = bool(self.handed) or self._differs(variant)
        if self._loaders.variants.keeps:
            if variant is not self._pass.loader:
                rested = self._resting.change(self._pass, variant)
                self._pass = self._begin(variant) if rested is None else rested
            return
        self._resting.drop()
        self._pass.end()
        end_workers(self._pass.loader)
        self._pass = self._begin(variant)


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
