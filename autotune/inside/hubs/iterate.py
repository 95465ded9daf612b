"""The hub of data loading, at ``DataLoader``: where the program builds, iterates and measures one.

A library's loader that does not derive from ``DataLoader`` is not covered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from threading import local
from typing import Any

from torch.utils.data import DataLoader

from autotune.inside.hubs.hub import Hub, overridden


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

    def __init__(self) -> None:
        self._built: tuple[Callable[[DataLoader[Any]], None], ...] = ()
        self._iterators: tuple[Callable[[DataLoader[Any]], Iterator[Any] | None], ...] = ()
        self._lengths: tuple[Callable[[DataLoader[Any]], int | None], ...] = ()
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

    def _choose(self) -> None:
        self._built = overridden(self._joined, IterateListener, "loader_built")
        self._iterators = overridden(self._joined, IterateListener, "iterator_of")
        self._lengths = overridden(self._joined, IterateListener, "length_of")

    def _patch(self) -> None:
        if not self._patches.is_used:
            self._patch_building()
        if self._iterators and self._iter is None:
            self._patch_iteration()
        if self._lengths and self._len is None:
            self._patch_length()

    def _patch_building(self) -> None:
        original, hub = DataLoader.__init__, self

        @wraps(original)  # Lightning reads the signature
        def init(loader: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
            original(loader, *args, **kwargs)
            for tell in hub._built:
                tell(loader)

        self._patches.replace(DataLoader, "__init__", init)

    def _patch_iteration(self) -> None:
        """Replace both methods: a subclass may call ``_get_iterator()`` without ``__iter__()``."""
        self._iter = DataLoader.__iter__
        make_iterator = DataLoader._get_iterator  # noqa: SLF001 - subclasses call it themselves
        hub = self

        def iterate(loader: DataLoader[Any]) -> Any:
            for ask in hub._iterators:
                if (iterator := ask(loader)) is not None:
                    return iterator
            return hub.begin(loader)

        def get_iterator(loader: DataLoader[Any]) -> Any:
            return make_iterator(loader) if hub.is_beginning else iterate(loader)

        self._patches.replace(DataLoader, "__iter__", iterate)
        self._patches.replace(DataLoader, "_get_iterator", get_iterator)

    def _patch_length(self) -> None:
        original, hub = DataLoader.__len__, self
        self._len = original

        def length(loader: DataLoader[Any]) -> int:
            for ask in hub._lengths:
                if (batches := ask(loader)) is not None:
                    return batches
            return original(loader)

        self._patches.replace(DataLoader, "__len__", length)
