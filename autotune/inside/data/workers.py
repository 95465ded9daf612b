"""Starts iterations over a DataLoader so that a changed number of workers leaves the data as it is.

Covered:

- random numbers that torch draws when an epoch begins: it draws no seed if persistent workers
  continue, and begins to iterate a sampler twice if workers start;
- the start method of worker processes;
- datasets that the program changes between epochs while persistent workers hold an older copy;
- files that the dataset has opened in this process and that workers must not share.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import multiprocessing
from torch.utils.data import DataLoader

from autotune.inside.data.dataset_digest import digest_of
from autotune.inside.data.handles import held_open, places, without_handles
from autotune.inside.data.loader_options import CONTEXT, start_method
from autotune.program.profile import LoaderFacts


@dataclass(frozen=True)
class _Beginning:
    """How an iteration begins: without workers, with new ones, or with persistent ones.

    Attributes:
        has_workers: Worker processes load the batches.
        stay: These workers continue from an earlier epoch.
    """

    has_workers: bool
    stay: bool


class Workers:
    """Begins iterations over changed loaders as they would begin with the program's own options."""

    def __init__(self) -> None:
        # Keyed by id(), because a dataset may define __eq__ and __hash__ in any way.
        self._built: dict[int, tuple[ref[Any], dict[str, bool]]] = {}
        self._started: WeakKeyDictionary[DataLoader[Any], bytes | None] = WeakKeyDictionary()
        self._orders: WeakKeyDictionary[DataLoader[Any], _Order] = WeakKeyDictionary()
        self._beginnings: WeakKeyDictionary[DataLoader[Any], int] = WeakKeyDictionary()

    def built(self, loader: DataLoader[Any]) -> None:
        """Record what a loader's dataset holds when the loader is built.

        A dataset without weak references, such as a list, is not recorded: it has no attributes.
        """
        dataset, known = loader.dataset, self._built
        key = id(dataset)
        if key in known:
            return
        with suppress(TypeError):
            watched = ref(dataset, lambda _: known.pop(key, None) and None)
            known[key] = (watched, places(dataset))

    def held_open(self, loader: DataLoader[Any]) -> str:
        """Return what a loader's dataset has held open since it was built; empty if nothing."""
        return held_open(loader.dataset, self._places(loader) or {})

    def begin(
        self,
        loader: DataLoader[Any],
        written: DataLoader[Any],
        facts: LoaderFacts,
        begin: Callable[[DataLoader[Any]], Iterator[Any]],
    ) -> Iterator[Any]:
        """Begin to iterate a loader, drawing the random numbers that the program's would draw.

        Returns:
            PyTorch's iterator.
        """
        keeps = loader.persistent_workers and loader.num_workers > 0
        would_keep = facts.persistent_workers and facts.num_workers > 0
        if keeps and not would_keep:
            self._restart_if_changed(loader)
        number = self._beginnings[written] = self._beginnings.get(written, 0) + 1
        ours = _Beginning(loader.num_workers > 0, keeps and vars(loader)["_iterator"] is not None)
        theirs = _Beginning(facts.num_workers > 0, would_keep and number > 1)
        if ours == theirs and keeps == would_keep:
            return begin(loader)
        changes = self._like_order(loader, ours, theirs)
        built: Mapping[str, bool] | None = None
        if ours.has_workers and not theirs.has_workers and not ours.stay:
            built = self._places(loader)
            # Without a context, torch would fix the default start method for the whole process,
            # and a later set_start_method() in the program would fail.
            if vars(loader)[CONTEXT] is None:
                changes[CONTEXT] = multiprocessing.get_context(start_method())
        # The program's persistent workers would draw no seed from the global generator here, but
        # torch is about to: let it draw from another generator.
        if theirs.stay and not ours.stay:
            seed = (torch.initial_seed() + number) % (1 << 63)
            changes["generator"] = torch.Generator().manual_seed(seed)
        handles = nullcontext() if built is None else without_handles(loader.dataset, built)
        with _changed(loader, changes), handles:
            return begin(loader)

    def _restart_if_changed(self, loader: DataLoader[Any]) -> None:
        """Drop persistent workers if the program has changed its dataset since they started.

        The program's own loader, without persistent workers, would read the changed dataset. They
        are dropped as well where that cannot be told.
        """
        now = digest_of(loader.dataset, loader.collate_fn)
        if now is None or now != self._started.get(loader):
            vars(loader)["_iterator"] = None
        if vars(loader)["_iterator"] is None:
            self._started[loader] = now

    def _like_order(
        self, loader: DataLoader[Any], ours: _Beginning, theirs: _Beginning
    ) -> dict[str, Any]:
        """Draw the seed and the sampler's order as the program's own loader would.

        Returns:
            Attributes that the loader needs while torch begins the iteration.
        """
        name = "sampler" if loader.batch_sampler is None else "batch_sampler"
        order = self._orders.get(loader) if ours.stay else _Order.of(vars(loader)[name])
        if order is not None:
            order.begin()
        if ours.stay and not theirs.stay:
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        if order is None:
            return {}
        if theirs.has_workers and not theirs.stay:  # torch calls iter() twice if workers start
            order.begin() if ours.stay else order.begin_late()
        self._orders[loader] = order
        return {name: order}

    def _places(self, loader: DataLoader[Any]) -> dict[str, bool] | None:
        return self._built.get(id(loader.dataset), (None, None))[1]


class _Order:
    """Stands for a sampler that draws its order as soon as ``iter()`` is called.

    torch may call ``iter()`` on it any number of times and always gets the same iterator. So the
    number of draws is decided by ``begin()`` and ``begin_late()`` alone.
    """

    def __init__(self, whole: Any) -> None:
        self._whole = whole
        self._present: Iterator[Any] = iter(())

    @classmethod
    def of(cls, sampler: Any) -> _Order | None:
        """Return a stand-in for a sampler; None if its ``__iter__`` is a generator function.

        Such a sampler draws nothing before the first batch is requested, so it needs no stand-in.
        """
        is_lazy = inspect.isgeneratorfunction(getattr(type(sampler), "__iter__", None))
        return None if is_lazy else cls(sampler)

    def begin(self) -> None:
        """Begin to iterate the sampler."""
        self._present = iter(self._whole)

    def begin_late(self) -> None:
        """Begin to iterate the sampler when the first batch is requested, not earlier."""
        self._present = (batch for sampler in (self._whole,) for batch in sampler)

    def __iter__(self) -> Iterator[Any]:
        return self._present

    def __len__(self) -> int:
        return len(self._whole)


@contextmanager
def _changed(loader: DataLoader[Any], changes: Mapping[str, Any]) -> Iterator[None]:
    # DataLoader's __setattr__ refuses some of these names
    before = {name: vars(loader)[name] for name in changes}
    vars(loader).update(changes)
    try:
        yield
    finally:
        vars(loader).update(before)
