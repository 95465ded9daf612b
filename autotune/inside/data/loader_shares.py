"""Loader shares: which part of the training loader's data each rank gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader, IterableDataset

from autotune.inside.data.built_loaders import BuiltLoaders
from autotune.inside.data.loader_facts import plain_batches
from autotune.inside.ranks.data_sharding import ShardedIterable, ShardedSampler
from autotune.inside.ranks.group import ALONE, Group


class LoaderShares:
    """Gives each rank its part of the training loader's data, until the process ends.

    The loader seam makes one per process; it is asked on whatever thread the program iterates.

    Args:
        built: The program's loaders.

    Attributes:
        group: The processes that train together; one until ``begin()``.
    """

    def __init__(self, built: BuiltLoaders) -> None:
        self.group = ALONE
        self._loaders = built
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

    def divides(self, loader: DataLoader[Any]) -> bool:
        """Return whether each rank gets a part of this loader's data only."""
        return self.is_shared and self._loaders.is_target(loader)

    def iterates(self, loader: DataLoader[Any]) -> None:
        """Note that the program begins to iterate a loader that is shared out."""
        self._begins()
        if isinstance(loader.dataset, ShardedIterable):
            loader.dataset.begin()

    def of(self, loader: DataLoader[Any]) -> ShardedSampler | ShardedIterable | None:
        """Return the sampler or dataset of this rank's share; None if the rank gets all data.

        The same object is returned in each epoch, because it counts the epochs.
        """
        if not self.divides(loader):
            return None
        if loader not in self._shards:
            name = f"loader {self._made}"  # never reused: the store may hold an order by that name
            self._made += 1
            if isinstance(loader.dataset, IterableDataset):
                self._shards[loader] = ShardedIterable(loader.dataset, self.group, name)
            else:
                drop_last = self._loaders.facts(loader).drop_last
                whole = self._whole(loader)
                self._shards[loader] = ShardedSampler(whole, self.group, name, drop_last=drop_last)
        return self._shards[loader]

    def _whole(self, loader: DataLoader[Any]) -> Any:
        """Return the sampler of all data of a loader."""
        plain = plain_batches(loader)
        if plain is not None:
            return plain.sampler
        # Without automatic batching (batch_size=None) items are batches.
        given = self._loaders.of(loader).given.batch_sampler
        return loader.sampler if given is None else given
