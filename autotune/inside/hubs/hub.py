"""What all hubs have in common: who listens, in which order, and what is patched meanwhile."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection
from typing import Any, Generic, TypeVar

from autotune.inside.hubs.patches import Patches

L = TypeVar("L")


class Hub(Generic[L]):
    """Calls those of its listeners that have joined, in its order.

    A listener may leave while the hub calls it; the calls of that round are made all the same.

    Attributes:
        listens: The base class of its listeners, whose public methods it calls.
        inner_first: Those that are called for the innermost listener first.
        told: By a method's name: the bound methods of the listeners that override it.
        order: Listeners whose place is fixed, the outermost first; set before any joins.
    """

    listens: type
    inner_first: Collection[str] = ()

    def __init__(self) -> None:
        self.told: dict[str, tuple[Callable[..., Any], ...]] = {}
        self.order: tuple[L, ...] = ()
        self._joined: list[L] = []
        self._place_of: dict[int, int] = {}  # by the id of a listener
        self._patches = Patches()
        self._choose()

    @property
    def listeners(self) -> tuple[L, ...]:
        """Who listens now, the outermost first."""
        return tuple(self._joined)

    def join(self, listener: L, *, within: bool = False) -> None:
        """Call this listener from now on; the first one has the hub patch its place.

        Args:
            listener: One that the order names, or another, such as one that looks at a few steps.
            within: Whether another one comes after all that the order names, instead of before.
        """
        if any(listener is own for own in self._joined):
            return
        named = {id(own): number for number, own in enumerate(self.order, start=1)}
        other = len(self.order) + 1 if within else 0
        self._place_of[id(listener)] = named.get(id(listener), other)
        self._joined.insert(0, listener)
        self._joined.sort(key=lambda own: self._place_of[id(own)])
        self._choose()
        self._patch()

    def leave(self, listener: L) -> None:
        """Stop calling this listener; with the last one the place becomes PyTorch's own again."""
        self._joined = [own for own in self._joined if own is not listener]
        self._choose()
        if not self._joined:
            self.remove()

    def remove(self) -> None:
        """Put PyTorch back as it was, whoever listens."""
        self._joined = []
        self._choose()
        self._patches.undo()

    @abstractmethod
    def _patch(self) -> None:
        """Replace the place, as far as those that have joined need it and it is not replaced."""

    def _choose(self) -> None:
        for name, plain in vars(self.listens).items():
            if not name.startswith("_"):
                order = self._joined[::-1] if name in self.inner_first else self._joined
                self.told[name] = tuple(
                    getattr(own, name) for own in order if getattr(type(own), name) is not plain
                )
