"""Give each rank its share of the data, in the order that the first rank draws.

The first rank iterates the program's own sampler, so the order is the one that a single process
would have. The other ranks read that order from the group's store and need not draw the same random
numbers. Of each ``world_size`` consecutive items every rank takes one, as torch's
DistributedSampler does. A global batch therefore holds the samples that it would hold on one rank.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy
import torch
from torch.utils.data import IterableDataset, Sampler, get_worker_info

from autotune.inside.ranks.group import Group

CHUNK = 8192  # items in one entry of the store; as indices some 20 KB
ROUNDS = 4  # of a stream that are read together, because swapping random states takes some 0.1 ms


class SampleOrder:
    """Sends the items of an iterable from the first rank to all ranks.

    Args:
        group: The processes that train together.
        name: Identifies this order in the store: the same on all ranks, and different for each
            order.
    """

    def __init__(self, group: Group, name: str) -> None:
        self._group = group
        self._name = name
        self._epoch = 0

    def of(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the first rank's items on every rank; other ranks do not iterate theirs.

        Each call is a new epoch, so all ranks must call it the same number of times.
        """
        self._epoch += 1
        name = f"order/{self._name}/{self._epoch}"
        return self._send(items, name) if self._group.is_first else self._read(name)

    def _send(self, items: Iterable[Any], name: str) -> Iterator[Any]:
        """Yield the items and store them in chunks for the others; an empty chunk marks the end."""
        source, number, chunk = iter(items), 0, [None]
        while chunk:
            chunk = list(islice(source, CHUNK))
            self._group.store.set(f"{name}/{number}", chunk)
            number += 1
            yield from chunk

    def _read(self, name: str) -> Iterator[Any]:
        """Yield the first rank's items; the last rank to read a chunk deletes it."""
        store, number, chunk = self._group.store, 0, [None]
        while chunk:
            key = f"{name}/{number}"
            chunk = store.get(key)
            if store.add(f"{key}/read", 1) == self._group.world_size - 1:
                store.delete_key(key)
                store.delete_key(f"{key}/read")
            number += 1
            yield from chunk


class ShardedSampler(Sampler[Any]):
    """One rank's share of what a sampler or a batch sampler yields.

    The loader seam puts it in the place of the training loader's sampler. The DataLoader iterates
    it on the thread that iterates the loader.

    Args:
        whole: The program's own sampler.
        group: The processes that train together.
        name: Identifies the order in the store.
        drop_last: Leave out the last items if there is not one for every rank. Otherwise items from
            the beginning are repeated, so that all ranks have the same number.
    """

    def __init__(
        self, whole: Sampler[Any] | Iterable[Any], group: Group, name: str, *, drop_last: bool
    ) -> None:
        self.whole = whole
        self._group = group
        self._order = SampleOrder(group, name)
        self._drop_last = drop_last

    def __iter__(self) -> Iterator[Any]:
        size, rank = self._group.world_size, self._group.rank
        order = self._order.of(self.whole)
        first: list[Any] = []
        while round_ := list(islice(order, size)):
            first = first if len(first) >= size else first + round_
            if len(round_) < size and self._drop_last:
                return
            missing = size - len(round_)
            round_ += [first[number % len(first)] for number in range(missing)]
            yield round_[rank]

    def __len__(self) -> int:
        return share_of(len(self.whole), self._group, drop_last=self._drop_last)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "whole" not in vars(self):
            raise AttributeError(name)
        return getattr(self.whole, name)  # set_epoch() and other calls by the program


class ShardedIterable(IterableDataset[Any]):
    """One rank's share of a stream: each rank reads the whole stream and keeps its own samples.

    The loader seam puts it in the place of the training loader's dataset. It is iterated on the
    thread that iterates the loader, or in the loader's worker processes. Random numbers that the
    stream draws are the same on all ranks, so a stream that shuffles yields the same order
    everywhere. A last round that does not serve every rank is left out, so that all ranks have the
    same number of samples.

    Args:
        whole: The program's own dataset.
        group: The processes that train together.
        name: Identifies the stream in the store.
    """

    whole: IterableDataset[Any]
    _rank: int
    _size: int
    _seed: int
    _epoch: int

    def __init__(self, whole: IterableDataset[Any], group: Group, name: str) -> None:
        if group.is_first:
            group.store.set(f"stream/{name}", torch.initial_seed())
        seed: int = group.store.get(f"stream/{name}")
        size = group.world_size
        # past __setattr__, which writes to the program's dataset
        vars(self).update(whole=whole, _rank=group.rank, _size=size, _seed=seed, _epoch=0)

    def begin(self) -> None:
        """Count an epoch that the program begins; the loader seam calls it in the main process.

        Workers that start for the epoch are copies of this object, and so know its number.
        """
        vars(self)["_epoch"] += 1

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        seed = self._seed + 1_000 * self._epoch + (worker.id if worker else 0)
        self.begin()  # persistent workers keep this copy and must count epochs themselves
        if worker is not None:
            object.__setattr__(worker, "seed", seed)  # many streams seed generators with it
        draws = _Draws(seed)  # used only while the stream is read
        with draws:
            stream = iter(self.whole)
        while True:
            with draws:
                read = list(islice(stream, ROUNDS * self._size))
            whole_rounds = len(read) - len(read) % self._size
            share = read[self._rank : whole_rounds : self._size]
            yield from share
            if len(share) < ROUNDS:
                return

    def __len__(self) -> int:
        return len(self.whole) // self._size  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "whole" not in vars(self):
            raise AttributeError(name)
        return getattr(self.whole, name)  # whatever the program asks its dataset

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute of the program's dataset.

        Many programs divide a stream among workers by setting attributes of the dataset in
        ``worker_init_fn``.
        """
        vars(self.whole)[name] = value


class _Draws:
    """A context in which torch, Python and NumPy draw random numbers of the stream's own sequence.

    The sequence continues from one use to the next. On leaving, the program's random states are as
    they were.
    """

    def __init__(self, seed: int) -> None:
        self._swapped: tuple[Any, Any, Any] = (
            torch.Generator().manual_seed(seed % (1 << 63)).get_state(),
            random.Random(seed).getstate(),
            numpy.random.RandomState(seed % (1 << 32)).get_state(),
        )

    def __enter__(self) -> None:
        present = torch.get_rng_state(), random.getstate(), numpy.random.get_state()  # noqa: NPY002
        torch.set_rng_state(self._swapped[0])
        random.setstate(self._swapped[1])
        numpy.random.set_state(self._swapped[2])  # noqa: NPY002 - programs draw from it
        self._swapped = present

    def __exit__(self, *_: object) -> None:
        self.__enter__()


def share_of(samples: int, group: Group, *, drop_last: bool) -> int:
    """Return how many samples each rank gets; rounded up without *drop_last*, as some repeat."""
    return samples // group.world_size if drop_last else -(-samples // group.world_size)
