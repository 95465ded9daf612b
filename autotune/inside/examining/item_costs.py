"""Loads items of the training loader in this process, and finds out what their time goes into.

The process is examined and then thrown away, so it does not matter that this moves the program's
random generators. Workers would do the same work, each on a copy of the data set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from autotune.inside.data.dataset_digest import digest_of
from autotune.inside.data.nested import tensors_in
from autotune.inside.examining.file_reads import FileReads, ThreadIo
from autotune.inside.examining.native_share import NativeShare
from autotune.inside.examining.thread_sampler import Seen, ThreadSampler
from autotune.measurement.examination import Cost, ItemsExamined

SAMPLED_S = 1.0  # loading is watched for about this long
PROFILED_S = 0.3
MIN_ITEMS = 2
MOSTLY = 0.5  # share of a line's time that a line in a library needs to be told with it


@dataclass(frozen=True)
class _Loaded:
    items: int
    seconds: float
    item_bytes: float


def examine_items(loader: DataLoader[Any]) -> ItemsExamined | None:
    """Return what loading items takes; None if the program's code raises here, or data end at once.

    Args:
        loader: The training loader as the program built it.
    """
    files = FileReads()
    # The program's code may refuse to be called once more, in any way
    with suppress(Exception), _threads_of_a_worker(loader):
        source = _Source(loader)
        source.load(0.0)  # first calls open files and fill caches
        is_random = source.is_random()
        before = ThreadIo.now()
        files.is_on = True
        with ThreadSampler() as sampler:
            loaded = source.load(SAMPLED_S)
        files.is_on = False
        read = ThreadIo.now()
        with NativeShare() as native:
            source.load(PROFILED_S)
        if not loaded.items or not sampler.seen.total_s:
            return None
        item_s = loaded.seconds / loaded.items
        opens = len(files.opened)
        per_open = (read.read_bytes - before.read_bytes) / opens if opens else 0.0
        file_share = files.replay_s(per_open) / loaded.seconds
        where, where_share, within = _lines(sampler.seen)
        return ItemsExamined(
            items=loaded.items,
            item_s=item_s,
            shares=shares(sampler.seen, native.share, file_share),
            where=where,
            where_share=where_share,
            within=within,
            opens=opens / loaded.items,
            bytes_per_open=per_open,
            disk_bytes=(read.disk_bytes - before.disk_bytes) / loaded.items,
            item_bytes=loaded.item_bytes,
            is_random=is_random,
            len_items=source.len_items,
        )
    files.is_on = False
    return None


def shares(seen: Seen, native: float, files: float) -> dict[Cost, float]:
    """Return the shares of the time by what the thread did; they add up to 1.

    Args:
        seen: What was sampled.
        native: Share of the computing in C functions, by a profile of calls. Sampling finds more of
            it where they let other threads run; the larger of both counts.
        files: Share of the time that opening and reading the same files takes. It is computing, as
            long as their content is in memory.
    """
    total_s = seen.total_s
    computing = seen.computing_s / total_s
    files = min(files, computing)
    natively = max(native, seen.native_s / seen.computing_s if seen.computing_s else 0.0)
    found = {
        Cost.FILES: files,
        # Calls that open and read files are native code as well, and count once
        Cost.NATIVE: min(computing - files, max(0.0, computing * natively - files)),
    }
    found[Cost.PYTHON] = computing - files - found[Cost.NATIVE]
    waited = sum(seen.blocked.values())
    for cost in (Cost.DISK, Cost.NETWORK, Cost.WAITING):
        part = seen.blocked[cost] / waited if waited else float(cost is Cost.WAITING)
        found[cost] = (1 - computing) * part
    return found


def _lines(seen: Seen) -> tuple[str, float, str]:
    """Return the line that most time passes in, its share, and the line in a library within it."""
    if not seen.places:
        return "", 0.0, ""
    where = max(seen.places, key=lambda line: seen.places[line])
    inner = {line: s for (own, line), s in seen.within.items() if own == where}
    within = max(inner, key=lambda line: inner[line])
    share = seen.places[where] / sum(seen.places.values())
    return where, share, within if inner[within] > MOSTLY * seen.places[where] else ""


class _Source:
    """The items of a loader, one after another, as its only process would load them."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        self._is_iterable = isinstance(loader.dataset, IterableDataset)
        self._batches = self._endless()
        self._until = 0.0

    @property
    def len_items(self) -> int | None:
        with suppress(Exception):  # a data set may have no length, and tell so in any way
            return len(self._loader.dataset)  # type: ignore[arg-type]
        return None

    def load(self, seconds: float) -> _Loaded:
        """Load batches for some seconds, at least a few items.

        A batch is cut short if its items take longer than that.

        Raises:
            StopIteration: The data are at their end, and do not start over.
        """
        began, items, size = perf_counter(), 0, 0
        self._until = began + seconds
        while items < MIN_ITEMS or perf_counter() < self._until:
            batch, number = next(self._batches)
            items += number
            size += sum(t.numel() * t.element_size() for t in tensors_in(batch))
        return _Loaded(items, perf_counter() - began, size / items)

    def is_random(self) -> bool | None:
        """Return whether the first item differs if it is loaded twice; None if that is unknown."""
        if self._is_iterable:
            return None
        first = next(self._indices())
        index = first[0] if self._has_batches else first
        one, other = (digest_of(self._loader.dataset[index]) for _ in range(2))
        return None if one is None else one != other

    @property
    def _has_batches(self) -> bool:
        """Whether the loader makes batches of items itself."""
        return self._loader.batch_sampler is not None

    def _endless(self) -> Iterator[tuple[Any, int]]:
        is_over = False
        while not is_over:
            is_over = True
            for batch in self._streamed() if self._is_iterable else self._mapped():
                is_over = False
                yield batch

    def _mapped(self) -> Iterator[tuple[Any, int]]:
        loader = self._loader
        fetch: Callable[[list[Any]], list[Any]] | None = None
        fetch = getattr(loader.dataset, "__getitems__", None)
        for indices in self._indices():
            if not self._has_batches:
                number = len(indices) if isinstance(indices, list) else 1
                yield loader.collate_fn(loader.dataset[indices]), number
            elif fetch is not None:
                yield loader.collate_fn(fetch(indices)), len(indices)
            else:
                items = [*self._in_time(loader.dataset[index] for index in indices)]
                yield loader.collate_fn(items), len(items)

    def _in_time(self, items: Iterator[Any]) -> Iterator[Any]:
        """Yield items until the time is up, at least a few."""
        for number, item in enumerate(items, 1):
            yield item
            if number >= MIN_ITEMS and perf_counter() > self._until:
                return

    def _streamed(self) -> Iterator[tuple[Any, int]]:
        size = self._loader.batch_size
        items: list[Any] = []
        for item in iter(self._loader.dataset):
            items.append(item)
            is_late = len(items) >= MIN_ITEMS and perf_counter() > self._until
            if is_late or len(items) == (size or 1):
                yield self._loader.collate_fn(items if size else item), len(items)
                items = []
        if items and not self._loader.drop_last:
            yield self._loader.collate_fn(items), len(items)

    def _indices(self) -> Iterator[Any]:
        sampler = self._loader.batch_sampler
        for indices in self._loader.sampler if sampler is None else sampler:
            yield list(indices) if sampler is not None else indices


@contextmanager
def _threads_of_a_worker(loader: DataLoader[Any]) -> Iterator[None]:
    """Compute with one thread, as torch does in workers, if the program's loader has some."""
    before = torch.get_num_threads()
    if loader.num_workers:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
