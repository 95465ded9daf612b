"""What the training loader becomes under a config: its share of the data, its sizes, its copies."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from operator import itemgetter
from typing import Any
from weakref import WeakKeyDictionary

from torch import multiprocessing
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from autotune.inside.data.loader_options import (
    CONTEXT,
    RequestedOptions,
    WorkerThreads,
    with_attributes,
)
from autotune.inside.data.loaders import BuiltLoaders, plain_batches, rewrapped
from autotune.inside.micro_batches import EpochShape
from autotune.inside.ranks.data_sharding import ShardedSampler, share_of
from autotune.inside.ranks.group import ALONE
from autotune.knobs.strategies.base import STREAM


class LoaderShares:
    """Gives each rank its part of the training loader's data, until the process ends.

    Attributes:
        group: The processes that train together; one until the seam shares the data.
        begins: Called when the program begins to iterate a loader that is shared out.
    """

    def __init__(self, built: BuiltLoaders) -> None:
        self.group = ALONE
        self._loaders = built
        self.begins: Callable[[], None] = lambda: None
        self._made = 0
        self._shards: WeakKeyDictionary[DataLoader[Any], ShardedSampler] = WeakKeyDictionary()

    def divides(self, loader: DataLoader[Any]) -> bool:
        """Return whether each rank gets a part of this loader's data only."""
        return self.group.world_size > 1 and self._loaders.is_target(loader)

    def of(self, loader: DataLoader[Any]) -> ShardedSampler | None:
        """Return the sampler of this rank's share; None if the rank gets all data.

        It is one object for all epochs, because it counts them.

        Raises:
            ValueError: if the data are a stream.
        """
        if not self.divides(loader):
            return None
        if loader not in self._shards:
            if isinstance(loader.dataset, IterableDataset):
                raise ValueError(f"{STREAM}: set devices to single in best.yaml")
            name = f"loader {self._made}"  # never reused: the store may hold an order by that name
            self._made += 1
            whole, plain = self._loaders.of(loader).batch_sampler, plain_batches(loader)
            if plain is not None or whole is None:  # batch_size=None: the items are batches
                whole = (loader if plain is None else plain).sampler
            drop_last = self._loaders.facts(loader).drop_last
            self._shards[loader] = ShardedSampler(whole, self.group, name, drop_last=drop_last)
        return self._shards[loader]


class LoaderSizes:
    """Counts the batches and samples of loaders.

    Attributes:
        read: Which length the program last got of each loader for a training pass.
    """

    def __init__(
        self, length: Callable[[DataLoader[Any]], int], built: BuiltLoaders, shares: LoaderShares
    ) -> None:
        self._length = length
        self._built = built
        self._shares = shares
        self.read: WeakKeyDictionary[DataLoader[Any], int] = WeakKeyDictionary()

    def length(self, loader: DataLoader[Any]) -> int | None:
        """Return the number of batches in an epoch; None for data without a length."""
        with suppress(Exception):  # the program did not ask, so its error must not end it
            return self._length(loader)
        return None

    def length_read(self, loader: DataLoader[Any]) -> int | None:
        """Return the length that the program last read from a loader, or else the present one."""
        read = self.read.get(loader)
        return self.length(loader) if read is None else read

    def dataset_len(self, loader: DataLoader[Any]) -> int | None:
        """Return the number of samples per epoch in this process; None for data without a length.

        For the training loader of several ranks this is the rank's share.
        """
        facts = self._built.facts(loader)
        if facts.dataset_len is None or not self._shares.divides(loader):
            return facts.dataset_len
        return share_of(facts.dataset_len, self._shares.group, drop_last=facts.drop_last)

    def batch_size(self, loader: DataLoader[Any]) -> int | None:
        """Return the samples per batch; None if the program's own code makes the batches."""
        plain = self._built.batches(loader)
        return None if plain is None else plain.batch_size

    def round_of(self, loader: DataLoader[Any]) -> int | None:
        """Return the number of batches until the data repeat; None if unknown.

        Differs from ``length()`` for a loader whose sampler cycles through the data endlessly.
        """
        plain = self._built.batches(loader)
        with suppress(Exception):  # the program's sampler may have no length
            return self.length(loader) if plain is None else len(plain)
        return None

    def epoch_of(self, loader: DataLoader[Any]) -> EpochShape:
        """Return the number of batches in an epoch and their sizes.

        The sizes are unknown if the program's own code makes the batches or if the data have no
        length.
        """
        batches, plain = self.length(loader), plain_batches(loader)
        dataset_len = self.dataset_len(loader)
        if plain is None or dataset_len is None:
            return EpochShape(batches)
        size = plain.batch_size
        last = size if plain.drop_last else (dataset_len - 1) % size + 1
        return EpochShape(batches, size, last)


OF_PASSES = {"_iterator", "_IterableDataset_len_called"}  # attributes that iterating sets


class LoaderVariants:
    """Makes copies of the training loader under the requested options, and keeps them."""

    def __init__(
        self, built: BuiltLoaders, options: RequestedOptions, shares: LoaderShares
    ) -> None:
        self._built = built
        self._options = options
        self._shares = shares
        # By a loader and options: the copy, with the attributes that the loader had then
        self._kept: WeakKeyDictionary[
            DataLoader[Any], dict[Hashable, tuple[DataLoader[Any], dict[str, Any]]]
        ] = WeakKeyDictionary()

    def of(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        """Return a copy of the loader with the requested options; itself if they change nothing.

        The same options get the same copy, because persistent workers belong to it, until the
        program sets an attribute of its loader.
        """
        changes = self.changes(loader)
        if all(vars(loader)[name] == value for name, value in changes.items()):
            return loader
        # A batch sampler is made anew each time; the batch size says all that it may differ in.
        plain = {n: v for n, v in changes.items() if n not in {"batch_sampler", "batch_size"}}
        size = self._options.values.get("batch_size", self._built.facts(loader).batch_size)
        key = (size, *sorted(plain.items(), key=itemgetter(0)))
        kept = self._kept.setdefault(loader, {})
        now = {n: v for n, v in vars(loader).items() if n not in OF_PASSES}
        copy, then = kept.get(key, (loader, {}))
        if now.keys() != then.keys() or any(now[name] is not then[name] for name in now):
            copy = with_attributes(loader, changes)
            kept[key] = copy, now
        return copy

    def changes(self, loader: DataLoader[Any]) -> dict[str, Any]:
        """Return the attributes that the loader has under the options, for ``vars(loader)``."""
        built = self._built.of(loader)
        facts, options = self._built.facts(loader), self._options.values
        changes = self._workers(loader)
        shard = self._shares.of(loader)
        present = self._built.batches(loader)
        if present is None:
            if shard is not None:
                changes["sampler" if built.batch_sampler is None else "batch_sampler"] = shard
            return changes
        size = int(options.get("batch_size", facts.batch_size) or 0)
        written = built.batch_sampler
        sampler = written.sampler if shard is None else shard
        if present.batch_size != size or present.sampler is not sampler:
            is_written = size == facts.batch_size and sampler is written.sampler
            made = written if is_written else BatchSampler(sampler, size, present.drop_last)
            changes["batch_sampler"] = rewrapped(loader.batch_sampler, made)
            if loader.batch_size is not None:  # None if the program passed a batch sampler
                changes["batch_size"] = size
        return changes

    def _workers(self, loader: DataLoader[Any]) -> dict[str, Any]:
        built, options = self._built.of(loader), self._options.values
        facts = self._built.facts(loader)
        workers = int(options.get("num_workers", facts.num_workers))
        prefetch = options.get("prefetch_factor", facts.prefetch_factor or 2)
        is_kept = workers > 0 and (workers != facts.num_workers or facts.persistent_workers)
        attributes: dict[str, Any] = {
            "num_workers": workers,
            "timeout": built.timeout if workers else 0,  # torch refuses a timeout without workers
            "prefetch_factor": prefetch if workers else None,
            "pin_memory": options.get("pin_memory", facts.pin_memory),
            "persistent_workers": is_kept,
            "in_order": options.get("in_order", facts.in_order),
            "worker_init_fn": built.worker_init_fn,
            CONTEXT: built.context,
        }
        if (threads := int(options.get("worker_threads", 1))) > 1:
            attributes["worker_init_fn"] = WorkerThreads(threads, built.worker_init_fn)
        if (method := options.get("start_method", facts.start_method)) != facts.start_method:
            attributes[CONTEXT] = multiprocessing.get_context(str(method))
        return attributes
