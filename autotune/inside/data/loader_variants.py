"""Loader variants: copies of a loader with the options that a config requests."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from autotune.inside.data.built_loaders import BuiltLoaders
from autotune.inside.data.loader_facts import rewrapped
from autotune.inside.data.loader_options import (
    RequestedOptions,
    end_workers,
    with_attributes,
    worker_attributes,
)
from autotune.inside.data.loader_shares import LoaderShares
from autotune.inside.data.resting import Resting
from autotune.inside.ranks.data_sharding import ShardedSampler


@dataclass(frozen=True)
class Variant:
    """A copy of a loader with other options.

    Attributes:
        copy: The copy.
        version: The version of the options that it has.
        attributes: The original loader's attributes when the copy was made.
    """

    copy: DataLoader[Any]
    version: int
    attributes: dict[str, Any]

    def is_of(self, loader: DataLoader[Any], version: int) -> bool:
        """Tell whether the copy is current: neither options nor loader changed since."""
        now = _without_iterator(loader)
        return (
            self.version == version
            and now.keys() == self.attributes.keys()
            and all(now[name] is value for name, value in self.attributes.items())
        )


class LoaderVariants:
    """Makes copies of the training loader under the requested options, and keeps them.

    A feed asks for them on the thread on which the program iterates; ``Steering`` turns keeping on
    and off on the main thread.

    Args:
        built: The program's loaders.
        options: What the config requests.
        shares: How the training loader's data are divided.

    Attributes:
        keeps: Whether the passes of all options stay alive, because configs take turns.
        resting: Stops the workers of passes that rest.
    """

    def __init__(
        self, built: BuiltLoaders, options: RequestedOptions, shares: LoaderShares
    ) -> None:
        self.keeps = False
        self.resting = Resting()
        self._built = built
        self._options = options
        self._shares = shares
        self._present: WeakKeyDictionary[DataLoader[Any], Variant] = WeakKeyDictionary()
        self._kept: WeakKeyDictionary[DataLoader[Any], dict[Hashable, DataLoader[Any]]] = (
            WeakKeyDictionary()
        )

    def of(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        """Return a copy of the loader with the requested options; itself if they change nothing.

        The same copy is returned until the options or the loader change, because persistent workers
        belong to the copy. Workers of a copy or loader that is no longer used are dropped, unless
        configs take turns.
        """
        if not self.keeps and (known := self._present.get(loader)) is not None:
            if known.is_of(loader, self._options.version):
                return known.copy
            end_workers(self._present.pop(loader).copy)
        changes = self.changes(loader)
        if all(vars(loader)[name] == value for name, value in changes.items()):
            return loader
        if self.keeps:
            return self._kept_copy(loader, changes)
        copy = with_attributes(loader, changes)
        end_workers(loader)  # the copy is iterated from here on, so these would stay idle
        self._present[loader] = Variant(copy, self._options.version, _without_iterator(loader))
        return copy

    def keep(self, *, enabled: bool) -> None:
        """Keep the passes of all options alive while configs take turns, or drop those that rest.

        The workers of a pass that rests are stopped (``Resting``).
        """
        has_kept, self.keeps = self.keeps, enabled
        if has_kept and not enabled:
            self.resting.wake_all()
            self._kept.clear()
            self._options.renew()  # feeds drop what they keep with their next batch

    def _kept_copy(self, loader: DataLoader[Any], changes: dict[str, Any]) -> DataLoader[Any]:
        # A batch sampler is made anew each time; the batch size says all that it may differ in.
        plain = {n: v for n, v in changes.items() if n not in {"batch_sampler", "batch_size"}}
        size = self._options.values.get("batch_size", self._built.facts(loader).batch_size)
        key = (size, *sorted(plain.items(), key=itemgetter(0)))
        kept = self._kept.setdefault(loader, {})
        if key not in kept:
            kept[key] = with_attributes(loader, changes)
        return kept[key]

    def changes(self, loader: DataLoader[Any]) -> dict[str, Any]:
        """Return the attributes that the loader has under the options, for ``vars(loader)``."""
        facts, given = self._built.facts(loader), self._built.of(loader).given
        options = self._options.values
        changes = worker_attributes(facts, given, options)
        shard = self._shares.of(loader)
        if isinstance(shard, IterableDataset):
            changes["dataset"] = shard
        present = self._built.batches(loader)
        if present is None:
            if isinstance(shard, ShardedSampler):
                changes["sampler" if given.batch_sampler is None else "batch_sampler"] = shard
            return changes
        size = int(options.get("batch_size", facts.batch_size) or 0)
        sampler = shard if isinstance(shard, ShardedSampler) else given.batch_sampler.sampler
        if present.batch_size != size or present.sampler is not sampler:
            is_given = size == facts.batch_size and sampler is given.batch_sampler.sampler
            made = (
                given.batch_sampler if is_given else BatchSampler(sampler, size, present.drop_last)
            )
            changes["batch_sampler"] = rewrapped(loader.batch_sampler, made)
            if loader.batch_size is not None:  # None if the program passed a batch sampler
                changes["batch_size"] = size
        return changes


def _without_iterator(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return a loader's attributes without those that torch sets during iteration."""
    noted = {"_iterator", "_IterableDataset_len_called"}
    return {name: value for name, value in vars(loader).items() if name not in noted}
