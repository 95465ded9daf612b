"""Looking at a program's objects runs no line of what their classes define."""

from __future__ import annotations

from typing import Any

import torch

from autotune.inside.data.handles import places, without_handles


class Touched(Exception):
    """A line of the program ran."""


def touch(*_: Any, **__: Any) -> Any:
    raise Touched


class Proxy:
    __class__ = property(touch)


class Slots:
    __slots__ = ("empty", "full")

    def __init__(self) -> None:
        self.full = 1

    __getattr__ = touch


class Magic:
    __getattribute__ = touch


class Items(list[Any]):
    __iter__ = __len__ = __getitem__ = touch


class Entries(dict[str, Any]):
    __iter__ = __len__ = __getitem__ = items = values = touch


class Ahead:
    __next__ = __length_hint__ = touch


class Key:
    __eq__ = __repr__ = touch

    def __hash__(self) -> int:
        if Key.is_made:
            touch()
        return id(self)

    is_made = False


class Text(str):
    __slots__ = ()
    __eq__ = __hash__ = __str__ = touch


class Number(float):
    __eq__ = __ne__ = __hash__ = touch


class Marked(torch.Tensor):
    __torch_function__ = classmethod(touch)


class Descriptor:
    __getattr__ = touch


class Holder:
    described = Descriptor()

    def __init__(self, held: Any) -> None:
        self.held = held

    lazy = property(touch)

    def __getitem__(self, index: int) -> Any:
        return self.held, self.lazy, self.described


def odd_things() -> list[Any]:
    things = [Proxy(), Slots(), Magic(), Ahead(), Text("a"), Number(1), Number("nan")]
    things += [
        Items([1, 2]),
        Items(range(300)),
        Entries(a=1),
        Entries({str(i): i for i in range(99)}),
    ]
    things += [{Key(): 1}, {Key(): i for i in range(99)}, [(Key(), i) for i in range(99)]]
    things += [[Text(str(i)) for i in range(99)], torch.zeros(3).as_subclass(Marked)]
    return things


def test_objects_are_looked_at_without_running_their_code() -> None:
    Key.is_made = False
    things = odd_things()
    Key.is_made = True
    for thing in things:
        dataset = Holder(thing)
        assert without_handles(dataset, places(dataset)) is dataset
