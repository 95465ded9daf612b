"""The beginnings of iterations: workers that a program does not ask for leave its data as it is.

Covered: what is drawn when an epoch begins (torch draws no seed where workers stay, and begins to
iterate a sampler twice where they start), how workers start, datasets that change between epochs
while workers stay, files that items have opened in this process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import multiprocessing
from torch.utils.data import DataLoader

from autotune.inside.data.copies import without_handles
from autotune.inside.data.datasets import Kind, Part, Path, Picture, look
from autotune.inside.ranks.data_sharding import ShardedIterable
from autotune.program.profile import LoaderFacts

CONTEXT = "_DataLoader__multiprocessing_context"  # behind the property, which refuses 0 workers


@dataclass(frozen=True)
class _Beginning:
    """How an iteration begins: with workers that start, with workers that stay, or with none."""

    has_workers: bool
    stay: bool

    @property
    def orders(self) -> int:
        """How often torch begins to iterate the sampler."""
        return 2 if self.has_workers and not self.stay else 1


class Workers:
    """Begins iterations over loaders, under whatever options, as the program's own would begin."""

    def __init__(self) -> None:
        self._built: dict[int, tuple[ref[Any], Picture]] = {}  # datasets may compare as they like
        self._started: WeakKeyDictionary[DataLoader[Any], Picture] = WeakKeyDictionary()
        self._orders: WeakKeyDictionary[DataLoader[Any], _Order] = WeakKeyDictionary()
        self._beginnings: WeakKeyDictionary[DataLoader[Any], int] = WeakKeyDictionary()

    def built(self, loader: DataLoader[Any]) -> None:
        """Note what a dataset holds before its items are asked for."""
        dataset, known = loader.dataset, self._built
        key = id(dataset)
        if key in known:
            return
        try:
            watched = ref(dataset, lambda _: known.pop(key, None) and None)
        except TypeError:  # a list and the like: not to be noted, and without attributes
            return
        known[key] = (watched, look(dataset=dataset))

    def picture(self, loader: DataLoader[Any]) -> Picture | None:
        """Return what its dataset held when the loader was built, if that was noted."""
        _, picture = self._built.get(id(loader.dataset), (None, None))
        return picture

    def begin(
        self,
        loader: DataLoader[Any],
        own: DataLoader[Any],
        facts: LoaderFacts,
        begin: Callable[[DataLoader[Any]], Iterator[Any]],
    ) -> Iterator[Any]:
        """Begin to iterate.

        Args:
            loader: Under the options.
            own: As the program built it.
            facts: Of that.
            begin: Does what PyTorch does.
        """
        keeps = loader.persistent_workers and loader.num_workers > 0
        own_keeps = facts.persistent_workers and facts.num_workers > 0
        if keeps and not own_keeps:
            self._restart_if_changed(loader)
        number = self._beginnings[own] = self._beginnings.get(own, 0) + 1
        ours = _Beginning(loader.num_workers > 0, keeps and vars(loader)["_iterator"] is not None)
        theirs = _Beginning(facts.num_workers > 0, own_keeps and number > 1)
        if ours == theirs and keeps == own_keeps:
            return begin(loader)
        changes = self._like_order(loader, ours, theirs)
        if ours.has_workers and not theirs.has_workers and not ours.stay:
            changes |= self._for_workers(loader)
        if theirs.stay and not ours.stay:  # here the program itself draws nothing
            seed = (torch.initial_seed() + number) % (1 << 63)
            changes["generator"] = torch.Generator().manual_seed(seed)
        with _changed(loader, changes):
            return begin(loader)

    def _restart_if_changed(self, loader: DataLoader[Any]) -> None:
        """Let go of workers that hold another dataset than the program does by now."""
        now = _copied(loader)
        if not _is_same(self._started.get(loader), now):
            vars(loader)["_iterator"] = None
        if vars(loader)["_iterator"] is None:
            self._started[loader] = now

    def _like_order(
        self, loader: DataLoader[Any], ours: _Beginning, theirs: _Beginning
    ) -> dict[str, Any]:
        """Draw seed and order as theirs would; return what torch is to find in the loader."""
        name = "sampler" if loader.batch_sampler is None else "batch_sampler"
        order = self._orders.get(loader) if ours.stay else _Order.of(vars(loader)[name])
        if order is not None:
            order.begin()
        if ours.stay and not theirs.stay:
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        if order is None:
            return {}
        if theirs.orders > 1:
            order.begin() if ours.stay else order.begin_late()
        self._orders[loader] = order
        return {name: order}

    def _for_workers(self, loader: DataLoader[Any]) -> dict[str, Any]:
        """What new workers need besides, where the program itself has none."""
        changes: dict[str, Any] = {"dataset": self._as_built(loader)}
        if vars(loader)[CONTEXT] is None:  # torch would settle the program's default for good
            changes[CONTEXT] = multiprocessing.get_context(start_method())
        return changes

    def _as_built(self, loader: DataLoader[Any]) -> Any:
        built = self.picture(loader)
        return loader.dataset if built is None else without_handles(loader.dataset, built)


class _Order:
    """Stands for a sampler that draws its order as soon as an iteration begins.

    Torch may begin to iterate it as often as it likes: it is iterated once.
    """

    def __init__(self, whole: Any) -> None:
        self._whole = whole
        self._present: Iterator[Any] = iter(())

    @classmethod
    def of(cls, sampler: Any) -> _Order | None:
        """Return one for a sampler; None where nothing happens before the first batch is asked."""
        is_lazy = inspect.isgeneratorfunction(getattr(type(sampler), "__iter__", None))
        return None if is_lazy else cls(sampler)

    def begin(self) -> None:
        """Begin to iterate the sampler."""
        self._present = iter(self._whole)

    def begin_late(self) -> None:
        """Begin to iterate it when the first batch is asked for."""
        self._present = (batch for sampler in (self._whole,) for batch in sampler)

    def __iter__(self) -> Iterator[Any]:
        return self._present

    def __len__(self) -> int:
        return len(self._whole)


def start_method(context: Any = None) -> str:
    """Return how processes start, without settling it for a program that may yet choose."""
    if context is not None:
        return str(context.get_start_method())
    chosen = multiprocessing.get_start_method(allow_none=True)
    return str(chosen or multiprocessing.get_all_start_methods()[0])  # the first is the default


@contextmanager
def _changed(loader: DataLoader[Any], changes: Mapping[str, Any]) -> Iterator[None]:
    """Give a loader other attributes for a moment; DataLoader refuses to set some by name."""
    before = {name: vars(loader)[name] for name in changes}
    vars(loader).update(changes)
    try:
        yield
    finally:
        vars(loader).update(before)


def _copied(loader: DataLoader[Any]) -> Picture:
    """What workers get a copy of."""
    dataset = loader.dataset
    if isinstance(dataset, ShardedIterable):  # knows by itself how many epochs have begun
        dataset = dataset.whole
    return look(dataset=dataset, collate_fn=loader.collate_fn)


def _is_same(started: Picture | None, now: Picture) -> bool:
    """Tell whether workers that stay have what workers that start would get.

    Generators, and what items count up, have gone on in them.
    """
    if started is None or not now.is_whole or now.of(Kind.GENERATOR) or now.counted & now.read:
        return False
    return _besides_handles(started) == _besides_handles(now)


def _besides_handles(picture: Picture) -> dict[Path, Part]:
    return {path: part for path, part in picture.parts.items() if part.kind is not Kind.HANDLE}
