"""Shards: each rank's share of the data, in the order that the first rank draws.

The first rank iterates the program's own sampler; its order is what one process alone would have
had. The others read it from the store of the group, so nothing depends on how a sampler draws its
random numbers. Of each ``world_size`` neighbours every rank takes its own, as torch's
DistributedSampler does: a global batch holds the samples that it would hold on one rank.
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

CHUNK = 8192  # indices in one entry of the store: some 20 KB
ROUNDS = 4  # of a stream that are read together: exchanging random states takes some 0.1 ms


class SampleOrder:
    """The items of an iterable on the first rank, on all ranks.

    Args:
        group: The processes that train together.
        name: Of this order, alike on all ranks and nothing else's.
    """

    def __init__(self, group: Group, name: str) -> None:
        self._group = group
        self._name = name
        self._epoch = 0

    def of(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the first rank's items; other ranks do not touch theirs."""
        self._epoch += 1
        return self._send(items, self._epoch) if self._group.is_first else self._read(self._epoch)

    def _send(self, items: Iterable[Any], epoch: int) -> Iterator[Any]:
        source, number = iter(items), 0
        while chunk := list(islice(source, CHUNK)):
            self._group.store.set(self._key(epoch, number), chunk)
            number += 1
            yield from chunk
        self._group.store.set(self._key(epoch, number), [])

    def _read(self, epoch: int) -> Iterator[Any]:
        number = 0
        while chunk := self._take(self._key(epoch, number)):
            number += 1
            yield from chunk

    def _take(self, key: str) -> list[Any]:
        """Wait for an entry; the last rank to read it takes it away."""
        chunk: list[Any] = self._group.store.get(key)
        if self._group.store.add(f"{key}/read", 1) == self._group.world_size - 1:
            self._group.store.delete_key(key)
            self._group.store.delete_key(f"{key}/read")
        return chunk

    def _key(self, epoch: int, number: int) -> str:
        return f"order/{self._name}/{epoch}/{number}"


class ShardedSampler(Sampler[Any]):
    """A rank's share of what a sampler, or a batch sampler, yields.

    Args:
        whole: The program's own.
        group: The processes that train together.
        name: Of the order.
        drop_last: Leave out what does not go round; else it is filled up from the beginning.
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
            if len(first) < size:
                first += round_
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
        return getattr(self.whole, name)  # set_epoch(), and what else a program asks its own


class ShardedIterable(IterableDataset[Any]):
    """A rank's share of a stream; each rank reads the whole stream and keeps its own samples.

    The stream's random numbers are the same on all ranks, so that one that shuffles is one stream.
    Rounds that are not whole are left out, so that all ranks have as many.

    Args:
        whole: The program's own.
        group: The processes that train together.
        name: Of the stream.
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
        vars(self).update(whole=whole, _rank=group.rank, _size=size, _seed=seed, _epoch=0)

    def begin(self) -> None:
        """The program begins an epoch; workers that it starts for that learn so from here."""
        vars(self)["_epoch"] += 1

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        seed = self._seed + 1_000 * self._epoch + (worker.id if worker else 0)
        self.begin()  # for workers that stay
        if worker is not None:
            object.__setattr__(worker, "seed", seed)  # many streams seed generators by it
        draws = _Draws(seed)  # of the stream alone: what is done with samples draws otherwise
        with draws:
            stream = iter(self.whole)
        while True:
            with draws:
                read = list(islice(stream, ROUNDS * self._size))
            whole_rounds = len(read) - len(read) % self._size
            own = read[self._rank : whole_rounds : self._size]
            yield from own
            if len(own) < ROUNDS:
                return

    def __len__(self) -> int:
        return len(self.whole) // self._size  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "whole" not in vars(self):
            raise AttributeError(name)
        return getattr(self.whole, name)  # what a program asks its own dataset

    def __setattr__(self, name: str, value: object) -> None:
        """Give it to the program's own: many share a stream out among workers by attributes."""
        vars(self.whole)[name] = value


class _Draws:
    """Random numbers of a stream's own, while it is read."""

    def __init__(self, seed: int) -> None:
        self._states = _seeded(seed)

    def __enter__(self) -> None:
        self._programs = _random_states()
        _set_random_states(self._states)

    def __exit__(self, *_: object) -> None:
        self._states = _random_states()
        _set_random_states(self._programs)


def _random_states() -> tuple[Any, Any, Any]:
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state()  # noqa: NPY002


def _set_random_states(states: tuple[Any, Any, Any]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    numpy.random.set_state(states[2])  # noqa: NPY002 - what programs draw from


def _seeded(seed: int) -> tuple[Any, Any, Any]:
    bits = numpy.random.RandomState(seed % (1 << 32))
    return (
        torch.Generator().manual_seed(seed % (1 << 63)).get_state(),
        random.Random(seed).getstate(),
        bits.get_state(),
    )


def share_of(samples: int, group: Group, *, drop_last: bool) -> int:
    """Return how many of so many samples a rank gets: equally many on all."""
    return samples // group.world_size if drop_last else -(-samples // group.world_size)
