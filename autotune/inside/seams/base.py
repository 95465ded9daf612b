"""Patches: attributes replaced on PyTorch's classes, put back in reverse order."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable, Iterator
from functools import partial, update_wrapper
from types import BuiltinFunctionType, ModuleType
from typing import Any, Self

_ABSENT = object()


def outermost(act: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a backward pass that acts in its outermost call; calls within that one are plain.

    A backward pass runs others within itself where activations are computed again by torch's
    reentrant checkpoint, maybe on a thread of its own. Tensors that a program hands over by an
    iterator come as a tuple, which may be read more than once.
    """
    is_within = False

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_within
        if is_within:
            return plain(*args, **kwargs)
        is_within = True
        if args and isinstance(args[0], Iterator):
            args = (tuple(args[0]), *args[1:])
        try:
            return act(*args, **kwargs)
        finally:
            is_within = False

    return call


class StandIn(partial[Any]):
    """What stands in the place of a function written in C, and behaves as one.

    As an attribute of a class it takes no ``self``; pickled, it is a name, which leads to whatever
    stands there in the process that reads it. A call costs what that of a partial costs.
    """

    path: str

    @classmethod
    def of(cls, replacement: Callable[..., Any], original: Any, path: str) -> Self:
        """Return what stands in for a function.

        Args:
            replacement: What is called.
            original: What it looks like.
            path: Where it is found, as in ``os:rename``.
        """
        stand_in = cls(replacement)
        update_wrapper(stand_in, original)
        stand_in.path = path
        return stand_in

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        """Bind to nothing; from Python 3.14 on, partials do."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return pkgutil.resolve_name, (self.path,)


class Patches:
    """A stack of replaced attributes."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []
        self._listed: list[tuple[set[Callable[..., Any]], Callable[..., Any]]] = []
        self._stand_ins: dict[Callable[..., Any], StandIn] = {}

    def replace(self, owner: Any, name: str, replacement: Any) -> None:
        """Replace an attribute; what an owner only inherits is deleted again at the end.

        ``os`` lists the functions that take ``dir_fd`` and the like, and shutil looks there.
        """
        original = vars(owner).get(name, _ABSENT)
        if isinstance(owner, ModuleType) and isinstance(original, (BuiltinFunctionType, StandIn)):
            replacement = self._stand_in(replacement, original, f"{owner.__name__}:{name}")
        self._undo.append((owner, name, original))
        if owner is os:
            for listing in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
                if original in listing:
                    listing.add(replacement)
                    self._listed.append((listing, replacement))
        setattr(owner, name, replacement)

    def _stand_in(self, replacement: Any, original: Any, path: str) -> StandIn:
        """Return one and the same for what is replaced in several places, as open is."""
        if isinstance(replacement, StandIn):
            return replacement
        if replacement not in self._stand_ins:
            self._stand_ins[replacement] = StandIn.of(replacement, original, path)
        return self._stand_ins[replacement]

    def replaced(self) -> dict[Any, Any]:
        """Return what stands now in the place of what, for functions that owners had themselves."""
        return {
            original: getattr(owner, name)
            for owner, name, original in self._undo
            if callable(original)
        }

    def undo(self) -> None:
        """Put everything back, last replaced first."""
        for listing, replacement in self._listed:
            listing.discard(replacement)
        self._listed.clear()
        while self._undo:
            owner, name, original = self._undo.pop()
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


class Seam:
    """A place in PyTorch where autotune acts; the base of all seams.

    ``SeamSet`` makes each seam before the program starts, installs it where it is needed, and
    removes it when the program has ended or nothing needs it any more. A seam that keeps more than
    replaced attributes overrides ``remove()``.
    """

    _patches: Patches

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        self._patches.undo()
