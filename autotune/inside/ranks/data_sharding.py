"""Give each rank its share of the data, in the order that the first rank draws.

The first rank iterates the program's own sampler, so the order is the one that a single process
would have. The other ranks read that order from the group's store and need not draw the same random
numbers. Of each ``world_size`` consecutive items every rank takes one, as torch's
DistributedSampler does. A global batch therefore holds the samples that it would hold on one rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import Sampler

from autotune.inside.ranks.group import Group

CHUNK = 8192  # items in one entry of the store; as indices some 20 KB


class ShardedSampler(Sampler[Any]):
    """One rank's share of what a sampler or a batch sampler yields; it takes the sampler's place.

    Each iteration is a new epoch, so all ranks must begin the same number of them.

    Args:
        name: The same on all ranks, and different for each sampler.
        drop_last: Leave out the last items if there is not one for every rank. Otherwise items from
            the beginning are repeated, so that all ranks have the same number.
    """

    def __init__(
        self, whole: Sampler[Any] | Iterable[Any], group: Group, name: str, *, drop_last: bool
    ) -> None:
        self.whole = whole
        self._group = group
        self._name = name
        self._drop_last = drop_last
        self._epoch = 0

    def __iter__(self) -> Iterator[Any]:
        size, rank = self._group.world_size, self._group.rank
        self._epoch += 1
        order = self._order(f"order/{self._name}/{self._epoch}")
        first: list[Any] = []
        while round_ := list(islice(order, size)):
            first = first if len(first) >= size else first + round_
            if len(round_) < size and self._drop_last:
                return
            missing = size - len(round_)
            round_ += [first[number % len(first)] for number in range(missing)]
            yield round_[rank]

    def _order(self, name: str) -> Iterator[Any]:
        """Yield what the first rank's sampler yields; other ranks do not iterate theirs.

        It is stored in chunks for the others, and an empty one marks the end. The last rank to read
        a chunk deletes it.
        """
        store, number, chunk = self._group.store, 0, [None]
        source = iter(self.whole) if self._group.is_first else iter(())  # it may draw at once
        while chunk:
            key = f"{name}/{number}"
            if self._group.is_first:
                chunk = list(islice(source, CHUNK))
                store.set(key, chunk)
            else:
                chunk = store.get(key)
                if store.add(f"{key}/read", 1) == self._group.world_size - 1:
                    store.delete_key(key)
                    store.delete_key(f"{key}/read")
            number += 1
            yield from chunk

    def __len__(self) -> int:
        return share_of(len(self.whole), self._group, drop_last=self._drop_last)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "whole" not in vars(self):
            raise AttributeError(name)
        return getattr(self.whole, name)  # set_epoch() and other calls by the program


def share_of(samples: int, group: Group, *, drop_last: bool) -> int:
    """Return how many samples each rank gets; rounded up without *drop_last*, as some repeat."""
    return samples // group.world_size if drop_last else -(-samples // group.world_size)
