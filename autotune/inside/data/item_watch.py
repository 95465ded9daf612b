"""Watch the first batches of each loader to see how its dataset behaves.

Worker processes get copies of the dataset. What items draw, open or change in this process, they
would draw, open or change in each copy separately, so a different number of workers may give other
data.
"""

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

MAX_BATCHES = 12  # more than the first, untouched steps take, unless a step takes many
ORDER = {"sampler", "batch_sampler"}  # roots that stay in the main process


class ItemWatch:
    """Takes pictures of a loader's dataset before and after each of its first batches.

    ``Feed`` calls ``before`` and ``after`` on the thread that takes batches; the loader seam calls
    the rest. A change while a batch is fetched was made by the items, a change between two batches
    by the program.
    """

    def __init__(self) -> None:
        self._seen: WeakKeyDictionary[DataLoader[Any], _Seen] = WeakKeyDictionary()
        self._last: tuple[_Seen, Picture] | None = None  # after the latest batch of any loader

    def began(self) -> None:
        """Forget the last picture when the program begins to iterate.

        What the program changes between epochs is allowed, for example by ``set_epoch()``.
        """
        self._last = None

    def before(self, loader: DataLoader[Any]) -> None:
        """Take a picture before a batch is fetched.

        What changed since the picture after this loader's last batch was changed by the program.
        Watching ends after ``MAX_BATCHES`` batches.
        """
        seen = self._seen.setdefault(loader, _Seen())
        last, self._last = self._last, None
        if seen.batches >= MAX_BATCHES:
            return
        seen.before = now = look_at(loader)
        if last is not None and last[0] is seen:
            seen.between(last[1], now)

    def after(self, loader: DataLoader[Any]) -> None:
        """Take a picture after a batch was fetched, and note what its items changed."""
        seen = self._seen[loader]
        before, seen.before = seen.before, None
        if before is None:
            return
        now = look_at(loader)
        seen.fetched(before, now)
        self._last = (seen, now)

    def facts(self, loader: DataLoader[Any], built: Picture | None) -> DatasetFacts:
        """Return what the batches of a loader have shown.

        Args:
            loader: As the program built it.
            built: A picture of the dataset from when it was built; None if there is none.
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
    """Return a picture of all that a loader's items and their order depend on.

    That is its dataset, ``collate_fn``, sampler and batch sampler.
    """
    order = {"sampler": loader.sampler, "batch_sampler": loader.batch_sampler}
    return look(dataset=loader.dataset, collate_fn=loader.collate_fn, **order)


def settled(picture: Picture) -> object:
    """Return what compares equal as long as the parts of a picture do, besides open files."""
    return {path: part for path, part in picture.parts.items() if part.kind is not Kind.HANDLE}


class _Seen:
    """What was seen of one loader; ``ItemWatch`` keeps one for each.

    Attributes:
        before: The picture taken before the batch that is being fetched. It is kept per loader
            because a thread, or the items themselves, may meanwhile fetch batches of other loaders.
        batches: How many batches were watched.
        drawn_from: Generators that items drew from.
        set_by_program: Parts that the program changed between two batches.
        changed: In how many batches the items changed a part that they also read.
    """

    def __init__(self) -> None:
        self.before: Picture | None = None
        self.batches = 0
        self.drawn_from: dict[Path, None] = {}
        self.set_by_program: dict[Path, None] = {}
        self.changed: Counter[Path] = Counter()

    def between(self, before: Picture, now: Picture) -> None:
        """Note the parts that the program changed between two batches."""
        for path, part in now.parts.items():
            was = before.parts.get(path)
            if part != was and part.kind is not Kind.OPAQUE and now.is_used(path):
                self.set_by_program[path] = None

    def fetched(self, before: Picture, now: Picture) -> None:
        """Note what the items of a batch drew from and changed."""
        self.batches += 1
        for path, was, part in _differences(before, now):
            if _orders(path):
                continue
            if part.kind is Kind.GENERATOR:
                self.drawn_from[path] = None
            elif now.is_used(path) and _is_state(was, part):
                self.changed[path] += 1


def _orders(path: Path) -> bool:
    """Return whether a part belongs to the sampler or batch sampler."""
    return path[0].how == "root" and path[0].key in ORDER


def _differences(before: Picture, now: Picture) -> Iterator[tuple[Path, Part, Part]]:
    """Yield the parts that are in both pictures with the same kind and different values."""
    for path, part in now.parts.items():
        was = before.parts.get(path)
        if was is not None and was.kind is part.kind and was != part:
            yield path, was, part


def _is_state(was: Part, now: Part) -> bool:
    """Return whether later items may depend on a change; filling a cache does not count."""
    if now.kind is Kind.VALUE:
        return was.value is not None
    return now.kind is Kind.ARRAY and _overwrites(was.value, now.value)


def _overwrites(was: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    """Return whether an array's changed elements had different values before.

    Elements that were all alike, such as zeros, are those of a cache that is being filled.
    """
    (*_, item, old), (*_, _item, new) = was, now
    if not isinstance(old, bytes) or len(old) != len(new) or old == new:
        return False
    elements = [numpy.frombuffer(data, f"V{item}") for data in (old, new)]
    changed = elements[0][elements[0] != elements[1]]
    return len({element.tobytes() for element in changed}) > 1


def _texts(paths: Iterator[Path] | dict[Path, None] | Any) -> tuple[str, ...]:
    """Return paths as the program would write them, without duplicates."""
    return tuple(dict.fromkeys(in_words(path) or "itself" for path in paths))
