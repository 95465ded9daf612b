"""The hub of data loading, at ``DataLoader``: where the program builds, iterates and measures one.

A library's loader that does not derive from ``DataLoader`` is not covered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import local
from typing import Any

from torch.utils.data import DataLoader

from autotune.inside.hubs.hub import Hub

Call = Callable[..., Any]


class IterateListener:
    """Acts on the program's loaders; a method that a class does not override costs nothing.

    The methods run on the thread that builds or iterates the loader.
    """

    def loader_built(self, loader: DataLoader[Any]) -> None:
        """A loader has been built."""

    def iterator_of(self, loader: DataLoader[Any]) -> Iterator[Any] | None:  # noqa: ARG002
        """Return what the program gets when it begins to iterate a loader.

        The first listener that returns an iterator decides; None leaves it to the others, and at
        last to PyTorch.
        """
        return None

    def length_of(self, loader: DataLoader[Any]) -> int | None:  # noqa: ARG002
        """Return what the program gets as ``len(loader)``; None as in ``iterator_of()``."""
        return None


class IterateHub(Hub[IterateListener]):
    """Calls its listeners where loaders are built, and asks them for iterators and lengths.

    Iteration and ``len()`` are replaced only if a listener acts there.
    """

    listens = IterateListener

    def __init__(self) -> None:
        self._iter: Callable[[Any], Iterator[Any]] | None = None  # PyTorch's, while replaced
        self._len: Callable[[Any], int] | None = None
        self._within = local()  # per thread: two threads may begin to iterate at the same time
        super().__init__()

    def begin(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """Call PyTorch's ``__iter__``.

        PyTorch calls the patched ``_get_iterator`` within. The depth tells that this call comes
        from PyTorch, so it must get the plain iterator and not ask the listeners again.
        """
        self._within.depth = getattr(self._within, "depth", 0) + 1
        try:
            return (self._iter or DataLoader.__iter__)(loader)
        finally:
            self._within.depth -= 1

    @property
    def is_beginning(self) -> bool:
        """Whether this thread is inside ``begin()``, where PyTorch itself makes an iterator."""
        return getattr(self._within, "depth", 0) > 0

    def length(self, loader: DataLoader[Any]) -> int:
        """Call PyTorch's ``__len__``."""
        return (self._len or DataLoader.__len__)(loader)

    def remove(self) -> None:
        """Put PyTorch back as it was, whoever listens."""
        super().remove()
        self._iter = self._len = None

    def _patch(self) -> None:
        if not self._patches.is_used:
            self._patches.wrap(DataLoader, "__init__", self._build)
        if self.told["iterator_of"] and self._iter is None:
            # Both methods: a subclass may call ``_get_iterator()`` without ``__iter__()``
            self._iter = DataLoader.__iter__
            self._patches.wrap(DataLoader, "__iter__", self._iterate)
            self._patches.wrap(DataLoader, "_get_iterator", self._get_iterator)
        if self.told["length_of"] and self._len is None:
            self._len = DataLoader.__len__
            self._patches.wrap(DataLoader, "__len__", self._length)

    def _build(self, original: Call, loader: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
        original(loader, *args, **kwargs)
        for tell in self.told["loader_built"]:
            tell(loader)

    def _iterate(self, _: Call, loader: DataLoader[Any]) -> Any:
        for ask in self.told["iterator_of"]:
            if (iterator := ask(loader)) is not None:
                return iterator
        return self.begin(loader)

    def _get_iterator(self, original: Call, loader: DataLoader[Any]) -> Any:
        return original(loader) if self.is_beginning else self._iterate(original, loader)

    def _length(self, original: Call, loader: DataLoader[Any]) -> Any:
        for ask in self.told["length_of"]:
            if (batches := ask(loader)) is not None:
                return batches
        return original(loader)
