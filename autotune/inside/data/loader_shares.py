"""Loader shares: which part of the training loader's data each rank gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader, IterableDataset

from autotune.inside.ranks.data_sharding import ShardedIterable, ShardedSampler
from autotune.inside.ranks.group import ALONE, Group


class LoaderShares:
    """Gives each rank its part of the training loader's data, until the process ends.

    The loader seam makes one per process and asks it on whatever thread the program iterates.

    Attributes:
        group: The processes that train together; one until ``begin()``.
    """

    def __init__(self) -> None:
        self.group = ALONE
        self._begins: Callable[[], None] = lambda: None
        self._made = 0
        self._shards: WeakKeyDictionary[DataLoader[Any], ShardedSampler | ShardedIterable] = (
            WeakKeyDictionary()
        )

    def begin(self, group: Group, begins: Callable[[], None]) -> None:
        """Share the training loader's data from here on.

        Args:
            group: The processes that train together.
            begins: Called whenever the program begins to iterate the training loader with
                gradients enabled.
        """
        self.group, self._begins = group, begins

    @property
    def is_shared(self) -> bool:
        """Whether there are several ranks."""
        return self.group.world_size > 1

    def iterates(self, loader: DataLoader[Any]) -> None:
        """Note that the program begins to iterate a loader that is shared out."""
        self._begins()
        if isinstance(loader.dataset, ShardedIterable):
            loader.dataset.begin()

    def of(
        self, loader: DataLoader[Any], whole: Any, *, drop_last: bool
    ) -> ShardedSampler | ShardedIterable:
        """Return the sampler or the dataset that yields this rank's share of a loader's data.

        The same object is returned in each epoch, because it counts the epochs.

        Args:
            loader: The training loader.
            whole: The sampler of all its data.
            drop_last: Whether the loader leaves out a batch that is not full.
        """
        if loader not in self._shards:
            name = f"loader {self._made}"  # never reused: the store may hold an order by that name
            self._made += 1
            if isinstance(loader.dataset, IterableDataset):
                self._shards[loader] = ShardedIterable(loader.dataset, self.group, name)
            else:
                self._shards[loader] = ShardedSampler(whole, self.group, name, drop_last=drop_last)
        return self._shards[loader]
