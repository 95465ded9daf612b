"""What the first batches show of a dataset that worker processes would get copies of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import numpy
from torch.utils.data import DataLoader

from autotune.inside.data.copies import lasting_handles
from autotune.inside.data.datasets import Kind, Part, Path, Picture, in_words, look
from autotune.program.profile import DatasetFacts

MAX_BATCHES = 12  # more than the untouched steps have, unless a step has many
ORDER = {"sampler", "batch_sampler"}  # stay in the main process


class ItemWatch:
    """Takes pictures before and after the batches of loaders, for the first few of each.

    What changes while a batch is fetched, its items did; what changes from one batch to the next,
    the program did.
    """

    def __init__(self) -> None:
        self._seen: WeakKeyDictionary[DataLoader[Any], _Seen] = WeakKeyDictionary()
        self._last: tuple[_Seen, Picture] | None = None  # after the latest batch of any loader

    def began(self) -> None:
        """The program begins to iterate: what it does between epochs is its own affair."""
        self._last = None

    def before(self, loader: DataLoader[Any]) -> None:
        """A batch is about to be fetched."""
        seen = self._seen.setdefault(loader, _Seen())
        last, self._last = self._last, None
        if seen.batches >= MAX_BATCHES:
            return
        seen.before = now = look_at(loader)
        if last is not None and last[0] is seen:
            seen.between(last[1], now)

    def after(self, loader: DataLoader[Any]) -> None:
        """A batch was fetched."""
        seen = self._seen[loader]
        before, seen.before = seen.before, None
        if before is None:
            return
        now = look_at(loader)
        seen.fetched(before, now)
        self._last = (seen, now)

    def facts(self, loader: DataLoader[Any], built: Picture | None) -> DatasetFacts:
        """Return what was seen.

        Args:
            loader: As the program built it.
            built: The dataset as it was then.
        """
        seen = self._seen.get(loader, _Seen())
        handles = lasting_handles(loader.dataset, built)
        return DatasetFacts(
            name=type(loader.dataset).__name__,
            drawn_from=_texts(seen.drawn_from),
            handles=tuple(f"{in_words(path)}: {kind}" for path, kind in handles.items()),
            set_by_program=_texts(p for p in seen.set_by_program if not _orders(p)),
            changed_by_items=_texts(p for p, n in seen.changed.items() if n > 1),
            steered_order=_texts(p for p in seen.set_by_program if _orders(p)),
        )


def look_at(loader: DataLoader[Any]) -> Picture:
    """Return a picture of what makes a loader's items, and of what orders them."""
    order = {"sampler": loader.sampler, "batch_sampler": loader.batch_sampler}
    return look(dataset=loader.dataset, collate_fn=loader.collate_fn, **order)


class _Seen:
    """What was seen of one loader.

    Attributes:
        before: Taken before the batch that is being fetched: batches of other loaders may be
            fetched meanwhile, by a thread or by the items themselves.
        changed: In how many batches items changed a part that they also read.
    """

    def __init__(self) -> None:
        self.before: Picture | None = None
        self.batches = 0
        self.drawn_from: dict[Path, None] = {}
        self.set_by_program: dict[Path, None] = {}
        self.changed: Counter[Path] = Counter()

    def between(self, before: Picture, now: Picture) -> None:
        """Note what the program did between two batches."""
        for path, part in now.parts.items():
            was = before.parts.get(path)
            if part != was and part.kind is not Kind.OPAQUE and now.is_used(path):
                self.set_by_program[path] = None

    def fetched(self, before: Picture, now: Picture) -> None:
        """Note what the items of a batch did."""
        self.batches += 1
        for path, was, part in _differences(before, now):
            if _orders(path):
                continue
            if part.kind is Kind.GENERATOR:
                self.drawn_from[path] = None
            elif now.is_used(path) and _is_state(was, part):
                self.changed[path] += 1


def _orders(path: Path) -> bool:
    """Tell whether a part is one of the sampler's."""
    return path[0].how == "root" and path[0].key in ORDER


def _differences(before: Picture, now: Picture) -> Iterator[tuple[Path, Part, Part]]:
    """Parts that both pictures have and that differ."""
    for path, part in now.parts.items():
        was = before.parts.get(path)
        if was is not None and was.kind is part.kind and was != part:
            yield path, was, part


def _is_state(was: Part, now: Part) -> bool:
    """Tell what later items may depend on from a cache that is filled."""
    if now.kind is Kind.VALUE:
        return was.value is not None
    return now.kind is Kind.ARRAY and _overwrites(was.value, now.value)


def _overwrites(was: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    """Tell whether elements of an array changed that were not all alike before, as in a cache."""
    (*_, item, old), (*_, _item, new) = was, now
    if not isinstance(old, bytes) or len(old) != len(new) or old == new:
        return False
    elements = [numpy.frombuffer(data, f"V{item}") for data in (old, new)]
    changed = elements[0][elements[0] != elements[1]]
    return len({element.tobytes() for element in changed}) > 1


def _texts(paths: Iterator[Path] | dict[Path, None] | Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(in_words(path) or "itself" for path in paths))
