"""Looking at a program's objects runs no line of what their classes define."""

from __future__ import annotations

from typing import Any

import torch

from autotune.inside.data.handles import places, without_handles


def touch(*_: Any, **__: Any) -> Any:
    raise AssertionError("a line of the program ran")


class Proxy:
    __class__ = property(touch)


class Magic:
    __getattribute__ = touch


class Items(list[Any]):
    __iter__ = __len__ = __getitem__ = touch


class Entries(dict[str, Any]):
    __iter__ = __len__ = __getitem__ = items = values = touch


class Key:
    __eq__ = __repr__ = touch
    __hash__ = object.__hash__


class Text(str):
    __slots__ = ()
    __eq__ = __str__ = __repr__ = touch
    __hash__ = str.__hash__


class Marked(torch.Tensor):
    __torch_function__ = classmethod(touch)


class Holder:
    lazy = property(touch)

    def __init__(self, held: Any) -> None:
        self.held = held

    __getitem__ = touch


def test_objects_are_looked_at_without_running_their_code() -> None:
    marked = torch.zeros(3).as_subclass(Marked)
    things = [Proxy(), Magic(), Text("a"), Items([1]), Entries(a=1), {Key(): 1, Text("b"): 2}]
    for thing in (*things, [Text(str(i)) for i in range(99)], marked):
        dataset = Holder(thing)
        with without_handles(dataset, places(dataset)):
            assert vars(dataset)["held"] is thing
