"""The seam at the DataLoader: identifies loaders, changes their options and observes their batches.

Every DataLoader that is built is recorded with its facts. The one that trains gets the options of
the config, either when it is built or as a changed copy that the feed iterates. Loaders of other
libraries are not covered here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from operator import itemgetter
from threading import local
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from autotune.inside.code.frames import site
from autotune.inside.data.feed import Feed
from autotune.inside.data.known_loaders import KnownLoaders
from autotune.inside.data.loader_facts import (
    foreign_sampler,
    inner_batches,
    plain_batches,
    read_facts,
    rewrapped,
)
from autotune.inside.data.loader_shares import LoaderShares
from autotune.inside.data.loader_variant import (
    ProgramOptions,
    Variant,
    start_method,
    without_iterator,
    worker_attributes,
)
from autotune.inside.data.resting import Resting, die_with_parent
from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.listener import Listener
from autotune.inside.micro_batches import EpochShape
from autotune.inside.ranks.data_sharding import ShardedIterable, ShardedSampler, share_of
from autotune.inside.ranks.group import Group
from autotune.inside.seams.accumulation import AccumulationSeam
from autotune.inside.seams.workers import Workers
from autotune.program.config import KnobValue
from autotune.program.profile import LoaderFacts

logger = logging.getLogger("autotune")
# The attributes that decide which samples a batch holds. The program's values are kept, because a
# loop without gradients (an evaluation) gets all samples even if training is sharded.
DATA = ("dataset", "sampler", "batch_sampler", "batch_size")


class LoaderSeam(Seam):
    """Knows every DataLoader of the program and gives the training loader its options.

    A loader that equals *target* gets the options when it is built, so ``len(loader)`` and all
    values that the program derives from it are true. In a running program the feed asks for a
    changed copy instead.

    ``SeamSet`` makes and installs it before the program starts. ``Steering`` requests options on
    the main thread; the patched DataLoader and ``Feed`` call it on whatever thread the program
    iterates, which may be a background thread.

    Args:
        listener: Told about every batch; None leaves iteration as it is.
        accumulation: Told about every batch of the training loader.
        target: The training loader, if it is known from an earlier run.
        program_knobs: Knobs that the program sets itself: the target may differ in these.
        built: Called after each loader has been built.
        fed: Called for each batch with gradients enabled; ``by_target`` tells whether it comes from
            the training loader or from another one.

    Attributes:
        evaluation: Gives loaders that train nothing other options.
        items: Observes what the first batches change in their dataset.
        version: Counts the changes of options; a feed with an older version is behind.
        keeps: Whether the passes of all options stay alive, because configs take turns.
        resting: Stops the workers of passes that rest.
        replays: While True, training feeds hand out the same batch again and again. Set to measure
            the program without its data loading.
    """

    def __init__(
        self,
        listener: Listener | None,
        accumulation: AccumulationSeam,
        target: LoaderFacts | None,
        program_knobs: Sequence[str] = (),
        built: Callable[[], None] = lambda: None,
        fed: Callable[..., None] = lambda **_: None,
    ) -> None:
        self._built_one = built
        self._fed = fed
        self._listener = listener
        self._accumulation = accumulation
        self._known = KnownLoaders(target, program_knobs)
        self._patches = Patches()
        self._facts: WeakKeyDictionary[DataLoader[Any], LoaderFacts] = WeakKeyDictionary()
        self._own: WeakKeyDictionary[DataLoader[Any], ProgramOptions] = WeakKeyDictionary()
        self._written: WeakKeyDictionary[DataLoader[Any], dict[str, Any]] = WeakKeyDictionary()
        self._evaluated: WeakSet[DataLoader[Any]] = WeakSet()
        self._first: WeakSet[DataLoader[Any]] | None = None  # built before training
        self._shares = LoaderShares()
        self._lengths: WeakKeyDictionary[DataLoader[Any], int] = WeakKeyDictionary()
        self._variants: WeakKeyDictionary[DataLoader[Any], Variant] = WeakKeyDictionary()
        self._options: dict[str, KnobValue] = {}
        self._workers = Workers()
        self._is_held = self._is_behind = False
        self._within = local()  # per thread: two threads may begin to iterate at the same time
        self.version = 0
        self.replays = self.keeps = False
        self.resting = Resting()
        self._kept: WeakKeyDictionary[DataLoader[Any], dict[Hashable, DataLoader[Any]]] = (
            WeakKeyDictionary()
        )

    def request(self, **options: KnobValue) -> None:
        """Request options for the training loader, by the names of their knobs.

        They replace earlier values of the same options. Feeds see them at their next batch, or
        after ``release()`` if the seam is held.
        """
        self._options.update(options)
        self._is_behind = True
        if not self._is_held:
            self.release()

    def hold(self) -> None:
        """Keep requested options from the feeds until ``release()``.

        A config sets its options one by one, and a feed on another thread must not begin with only
        some of them.
        """
        self._is_held = True

    def release(self) -> None:
        """Let feeds see the requested options from their next batch on."""
        self._is_held = False
        if self._is_behind:
            self._is_behind = False
            self.version += 1

    def share(self, group: Group, begins: Callable[[], None]) -> None:
        """Give each rank its part of the training loader's data, until the process ends.

        Args:
            group: The processes that train together.
            begins: Called whenever the program begins to iterate the training loader with
                gradients enabled.
        """
        self._shares.begin(group, begins)
        self.request(world_size=group.world_size)

    def facts(self, loader: DataLoader[Any]) -> LoaderFacts:
        """Return a loader's facts, with the options that the program gave it.

        A loader that was built before the seam was installed is read now. After training has begun,
        the facts also tell how many equal loaders were built until then.
        """
        if loader not in self._facts:
            self._built(loader, "")
        own = self._own[loader]
        is_rewrapped = loader not in self._written and loader.batch_sampler is not own.batch_sampler
        is_rewrapped = is_rewrapped and self._batches(loader) is None
        facts = replace(
            self._facts[loader],
            start_method=start_method(own.context),
            is_rewrapped=is_rewrapped,
            batch_sampler=foreign_sampler(loader) if self._batches(loader) is None else "",
        )
        return self._known.in_training(facts)

    def training_begins(self) -> None:
        """Note that the first step is about to begin: the program's loaders are built.

        Equal loaders that are built later are taken for rebuilt ones, as a program may build its
        loaders anew for each epoch.
        """
        self._known.training_begins()
        if self._first is None:
            self._first = WeakSet(self._facts)

    def is_rebuilt(self, loader: DataLoader[Any]) -> bool:
        """Return whether a loader was built after training had begun."""
        return self._first is not None and loader not in self._first

    def held_open(self, loader: DataLoader[Any]) -> str:
        """Return what a loader's dataset holds open, which workers would share; empty if none."""
        return self._workers.held_open(loader)

    def iterate(self, loader: DataLoader[Any], own: DataLoader[Any]) -> Iterator[Any]:
        """Return PyTorch's iterator over a loader, called when a pass over its data begins.

        If gradients are disabled, the program evaluates: the iterator then yields all samples in
        the program's own batches, although training may be sharded.

        Args:
            loader: The loader to iterate: the program's, or its variant under the options.
            own: The loader that the program built.
        """
        if loader in self._written and not torch.is_grad_enabled():
            self._evaluated.add(loader)
            return self._begin(self._as_written(loader))
        self._evaluated.discard(loader)
        if self._is_shared(loader):
            self._shares.iterates(loader)
        return self._workers.begin(loader, own, self.facts(own), self._begin)

    def variant(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        """Return a copy of the loader with the requested options; itself if they change nothing.

        The same copy is returned until the options or the loader change, because persistent workers
        belong to the copy. Workers of a copy or loader that is no longer used are dropped.
        """
        if self.keeps:
            return self._kept_variant(loader)
        known = self._variants.get(loader)
        if known is not None and known.is_of(loader, self.version):
            return known.variant
        if known is not None:
            self.end_workers(self._variants.pop(loader).variant)
        changes = self._changes(loader)
        if all(vars(loader)[name] == value for name, value in changes.items()):
            return loader
        copy = _copy(loader, changes)
        self.end_workers(loader)  # the copy is iterated from here on, so these would stay idle
        self._variants[loader] = Variant(copy, self.version, without_iterator(loader))
        return copy

    def keep(self, *, enabled: bool) -> None:
        """Keep the passes of all options alive while configs take turns, or drop those that rest.

        The workers of a pass that rests are stopped (``Resting``).
        """
        has_kept, self.keeps = self.keeps, enabled
        if has_kept and not enabled:
            self.resting.wake_all()
            self._kept.clear()
            self.version += 1  # feeds drop what they keep with their next batch

    def _kept_variant(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        """Return the copy of the loader with these options; itself if they change nothing."""
        changes = self._changes(loader)
        if all(vars(loader)[name] == value for name, value in changes.items()):
            return loader
        # A batch sampler is made anew each time; the batch size says all that it may differ in.
        plain = {n: v for n, v in changes.items() if n not in {"batch_sampler", "batch_size"}}
        size = self._options.get("batch_size", self.facts(loader).batch_size)
        key = (size, *sorted(plain.items(), key=itemgetter(0)))
        kept = self._kept.setdefault(loader, {})
        if key not in kept:
            kept[key] = _copy(loader, changes)
        return kept[key]

    def end_workers(self, loader: DataLoader[Any]) -> None:
        """Drop a loader's persistent workers; they end when nothing iterates over them."""
        vars(loader)["_iterator"] = None

    @property
    def found_target(self) -> bool:
        """Whether the program has built the loader that was known to train."""
        return self._known.found_target

    @property
    def misses_target(self) -> bool:
        """Whether options were requested but the loader that they are for was not built."""
        return self._known.target is not None and bool(self._options) and not self.found_target

    def install(self) -> None:
        """Patch DataLoader to record loaders and, if needed, to observe their batches.

        Without a listener, iteration and ``len()`` are patched only if a step may be made of other
        samples than the program's, or if workers are changed.
        """
        if self._listener is not None:
            die_with_parent(lambda: self._is_beginning)
        original_init = DataLoader.__init__
        self._original_iter = DataLoader.__iter__
        make_iterator = DataLoader._get_iterator  # noqa: SLF001 - subclasses call it themselves
        self._original_len = DataLoader.__len__
        seam = self

        @wraps(original_init)  # Lightning reads the signature
        def init(loader: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
            original_init(loader, *args, **kwargs)
            seam._built(loader, site())
            seam._built_one()

        self._patches.replace(DataLoader, "__init__", init)
        listener = self._listener
        if listener is None and not self._changes_steps and not self._has_workers_of_ours:
            return

        def iterate(loader: DataLoader[Any]) -> Iterator[Any]:
            if listener is None:
                return seam._in_groups(loader)
            return Feed(loader, seam, listener)

        def get_iterator(loader: DataLoader[Any]) -> Any:
            return make_iterator(loader) if seam._is_beginning else iterate(loader)

        def length(loader: DataLoader[Any]) -> int:
            is_whole = loader in seam._evaluated
            batches = seam._original_len(seam._as_written(loader) if is_whole else loader)
            # A length read for evaluation does not tell how long a training pass is.
            if torch.is_grad_enabled():
                seam._lengths[loader] = batches
            return batches

        # A subclass may call _get_iterator() without DataLoader.__iter__, so both are patched.
        self._patches.replace(DataLoader, "__iter__", iterate)
        self._patches.replace(DataLoader, "_get_iterator", get_iterator)
        self._patches.replace(DataLoader, "__len__", length)

    @property
    def _is_beginning(self) -> bool:
        """Whether this thread is inside ``_begin()``, where PyTorch itself makes an iterator."""
        return getattr(self._within, "depth", 0) > 0

    def _begin(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """Call PyTorch's ``__iter__``.

        PyTorch calls the patched ``_get_iterator`` within. The depth tells that this call comes
        from PyTorch, so it must get the plain iterator and not another feed.
        """
        self._within.depth = getattr(self._within, "depth", 0) + 1
        try:
            return self._original_iter(loader)
        finally:
            self._within.depth -= 1

    @property
    def _has_workers_of_ours(self) -> bool:
        return bool({"num_workers", "persistent_workers"} & self._options.keys())

    def length(self, loader: DataLoader[Any]) -> int | None:
        """Return the number of batches in an epoch; None for data without a length."""
        try:
            return self._original_len(loader)
        except Exception:  # noqa: BLE001 - the program did not ask, so its error must not end it
            return None

    def length_read(self, loader: DataLoader[Any]) -> int | None:
        """Return the length that the program last read from a loader.

        If the program has not read it, return the loader's present length; None for data without
        one.
        """
        read = self._lengths.get(loader)
        return self.length(loader) if read is None else read

    def dataset_len(self, loader: DataLoader[Any]) -> int | None:
        """Return the number of samples per epoch in this process; None for data without a length.

        For the training loader of several ranks this is the rank's share.
        """
        facts = self.facts(loader)
        if facts.dataset_len is None or not self._is_shared(loader):
            return facts.dataset_len
        drop_last = facts.drop_last or facts.iterable
        return share_of(facts.dataset_len, self._shares.group, drop_last=drop_last)

    def batch_size(self, loader: DataLoader[Any]) -> int | None:
        """Return the samples per batch; None if the program's own code makes the batches."""
        plain = self._batches(loader)
        return None if plain is None else plain.batch_size

    def round_of(self, loader: DataLoader[Any]) -> int | None:
        """Return the number of batches until the data repeat; None if unknown.

        Differs from ``length()`` for a loader whose sampler cycles through the data endlessly.
        """
        plain = self._batches(loader)
        try:
            return self.length(loader) if plain is None else len(plain)
        except Exception:  # noqa: BLE001 - the program's sampler may have no length
            return None

    def is_target(self, loader: DataLoader[Any]) -> bool:
        """Tell whether this is the training loader known from an earlier run."""
        return loader in self._facts and self._known.is_target(self._facts[loader])

    def epoch_of(self, loader: DataLoader[Any]) -> EpochShape:
        """Return the number of batches in an epoch and their sizes, with the present options.

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

    def hand_out(
        self, loader: DataLoader[Any], number: int, iteration: object = None, *, trains: bool
    ) -> None:
        """Note that a batch is handed to the program.

        Tells the rates seam whose batch the next step uses, and accumulation where its groups of
        micro-batches begin. A batch that is read with gradients disabled feeds no optimizer, so the
        rates seam is not told of it.

        Args:
            loader: The loader with its present options.
            number: The batch's number in the epoch, from 1.
            iteration: Identifies one pass over the data; None if the caller does not tell when the
                pass ends.
            trains: Whether this is the training loader.
        """
        if torch.is_grad_enabled():
            self._fed(by_target=trains)
        if trains and self._accumulation.steps > 1:
            self._accumulation.begin(number, self.epoch_of(loader), iteration)

    @property
    def _changes_steps(self) -> bool:
        """Whether a step may use other samples than the program's own steps do."""
        more = self._accumulation.steps > 1 or "batch_size" in self._options
        return more or self._shares.is_shared

    def _in_groups(self, loader: DataLoader[Any]) -> Iterator[Any]:
        if loader not in self._facts:  # built before the seam was installed: left as it is
            return self._begin(loader)
        batches = self.iterate(loader, loader)
        if not self._changes_steps or loader in self._evaluated:
            return batches
        return self._noted(loader, batches)

    def _noted(self, loader: DataLoader[Any], batches: Iterator[Any]) -> Iterator[Any]:
        trains, iteration = self.is_target(loader), object()
        try:
            for number, batch in enumerate(batches, start=1):
                self.hand_out(loader, number, iteration, trains=trains)
                yield batch
        finally:  # also if the program leaves its loop early
            self._accumulation.end(iteration)

    def describe_missing_target(self) -> str:
        """Return a sentence that says which loader was not found and what was not applied."""
        target = self._known.target
        assert target is not None, "only a known target can be missed"
        return (
            f"no DataLoader here is the one that was tuned ({target.dataset} of "
            f"{target.dataset_len} samples, batch size {target.batch_size}), so "
            f"{', '.join(self._options)} were not applied. Search again for this program and data."
        )

    def _as_written(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        """Return a copy that yields the same batches as the loader that the program wrote."""
        copy = object.__new__(type(loader))
        vars(copy).update(vars(loader))
        vars(copy).update(self._written[loader], _iterator=None)
        return copy

    def _built(self, loader: DataLoader[Any], site: str) -> None:
        facts = self._known.built(replace(read_facts(loader), site=site))
        self._facts[loader] = facts
        self._own[loader] = ProgramOptions(
            loader.batch_sampler,
            loader.timeout,
            loader.multiprocessing_context,
            loader.worker_init_fn,
        )
        if self._listener is not None or self._has_workers_of_ours:
            self._workers.built(loader)
        if self._known.is_target(facts):
            self._known.found_target = True
            changes = self._changes(loader)
            self._written[loader] = {n: vars(loader)[n] for n in DATA if n in changes}
            vars(loader).update(changes)

    def _changes(self, loader: DataLoader[Any]) -> dict[str, Any]:
        """Return the attributes that the loader has under the options.

        The caller writes them to ``vars(loader)``, because DataLoader's ``__setattr__`` refuses
        some of these names after construction.
        """
        facts, own, options = self.facts(loader), self._own[loader], self._options
        changes = worker_attributes(facts, own, options)
        shard = self._shard(loader)
        if isinstance(shard, IterableDataset):
            changes["dataset"] = shard
        present = self._batches(loader)
        if present is None:
            if isinstance(shard, ShardedSampler):
                changes["sampler" if own.batch_sampler is None else "batch_sampler"] = shard
            return changes
        size = int(options.get("batch_size", facts.batch_size) or 0)
        sampler = shard if isinstance(shard, ShardedSampler) else own.batch_sampler.sampler
        if present.batch_size != size or present.sampler is not sampler:
            is_own = size == facts.batch_size and sampler is own.batch_sampler.sampler
            made = own.batch_sampler if is_own else BatchSampler(sampler, size, present.drop_last)
            changes["batch_sampler"] = rewrapped(loader.batch_sampler, made)
            if loader.batch_size is not None:  # None if the program passed a batch sampler
                changes["batch_size"] = size
        return changes

    def _batches(self, loader: DataLoader[Any]) -> BatchSampler | None:
        """Return torch's BatchSampler that makes the loader's batches; None if there is not one.

        It may be the loader's batch sampler, or lie within a wrapper of the program's that goes
        through it again and again.
        """
        own = self._own.get(loader)
        found = plain_batches(loader)
        if found is None and own is not None and type(own.batch_sampler) is BatchSampler:
            found = inner_batches(loader.batch_sampler)
        # A batch sampler that the program has assigned later may draw from another sampler.
        is_foreign = own is not None and found is not own.batch_sampler
        return None if is_foreign and loader not in self._written else found

    def _is_shared(self, loader: DataLoader[Any]) -> bool:
        return self._shares.is_shared and self.is_target(loader)

    def _shard(self, loader: DataLoader[Any]) -> ShardedSampler | ShardedIterable | None:
        """Return the sampler or dataset of this rank's share; None if the rank gets all data."""
        if not self._is_shared(loader):
            return None
        plain = plain_batches(loader)
        whole = self._own[loader].batch_sampler if plain is None else plain.sampler
        if whole is None:  # no automatic batching (batch_size=None): items are batches
            whole = loader.sampler
        return self._shares.of(loader, whole, drop_last=self.facts(loader).drop_last)


def _copy(loader: DataLoader[Any], changes: Mapping[str, Any]) -> DataLoader[Any]:
    """Return a loader with other attributes, without building it anew."""
    copy = object.__new__(type(loader))
    vars(copy).update(vars(loader))
    vars(copy).update(changes, _iterator=None)
    return copy
