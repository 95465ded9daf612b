"""The hub of data loading acts only where somebody listens, in the order that it was given."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from autotune.inside.hubs.iterate import IterateHub, IterateListener

PLACES = ("__init__", "__iter__", "_get_iterator", "__len__")


class Notes(IterateListener):
    """Notes each loader that is built."""

    def __init__(self, name: str, noted: list[str]) -> None:
        self.name, self.noted = name, noted

    def loader_built(self, loader: DataLoader[Any]) -> None:
        self.noted.append(self.name)


class Twice(IterateListener):
    """Hands out all batches of large loaders twice."""

    def __init__(self, hub: IterateHub) -> None:
        self.hub = hub

    def iterator_of(self, loader: DataLoader[Any]) -> Iterator[Any] | None:
        if self.hub.length(loader) < 3:
            return None
        return (batch for _ in range(2) for batch in self.hub.begin(loader))

    def length_of(self, loader: DataLoader[Any]) -> int | None:
        batches = self.hub.length(loader)
        return None if batches < 3 else 2 * batches


class Direct(DataLoader[Any]):
    """Iterates without ``DataLoader.__iter__``, as loaders without end do."""

    def __iter__(self) -> Any:
        return self._get_iterator()


def loader_of(samples: int, kind: type[DataLoader[Any]] = DataLoader) -> DataLoader[Any]:
    return kind([*range(1, samples + 1)])  # type: ignore[arg-type]


def places() -> list[Any]:
    return [vars(DataLoader)[name] for name in PLACES]


def test_only_those_places_are_replaced_at_which_a_listener_acts() -> None:
    noted: list[str] = []
    hub = IterateHub()
    first, second = Notes("first", noted), Notes("second", noted)
    hub.order = (first, second)
    before, signature = places(), inspect.signature(DataLoader)
    for listener in (second, first):
        hub.join(listener)
    try:
        assert inspect.signature(DataLoader) == signature, "Lightning reads it"
        loader = loader_of(4)
        assert noted == ["first", "second"]
        assert [a is b for a, b in zip(places(), before, strict=True)] == [False, True, True, True]
        assert [*pickle.loads(pickle.dumps(loader))] == [1, 2, 3, 4]
    finally:
        hub.remove()


def test_what_a_listener_leaves_open_is_what_pytorch_does() -> None:
    hub = IterateHub()
    before = places()
    twice = Twice(hub)
    hub.join(twice)
    try:
        for kind in (DataLoader, Direct):
            few, many = loader_of(2, kind), loader_of(3, kind)
            assert ([x.item() for x in few], len(few)) == ([1, 2], 2), kind
            assert ([x.item() for x in many], len(many)) == ([1, 2, 3] * 2, 6), kind
    finally:
        hub.leave(twice)
    assert places() == before
