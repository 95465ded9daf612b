"""Patches: attributes replaced on PyTorch's classes, put back in reverse order."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

_ABSENT = object()


def outermost(act: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that acts in its outermost call; calls within that one are plain.

    A backward pass runs others within itself where activations are computed again by torch's
    reentrant checkpoint, maybe on a thread of its own.
    """
    is_within = False

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_within
        if is_within:
            return plain(*args, **kwargs)
        is_within = True
        try:
            return act(*args, **kwargs)
        finally:
            is_within = False

    return call


class Patches:
    """A stack of replaced attributes."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []
        self._listed: list[tuple[set[Callable[..., Any]], Callable[..., Any]]] = []

    def replace(self, owner: Any, name: str, replacement: Any) -> None:
        """Replace an attribute; what an owner only inherits is deleted again at the end.

        ``os`` lists the functions that take ``dir_fd`` and the like, and shutil looks there.
        """
        original = vars(owner).get(name, _ABSENT)
        self._undo.append((owner, name, original))
        if owner is os:
            for listing in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
                if original in listing:
                    listing.add(replacement)
                    self._listed.append((listing, replacement))
        setattr(owner, name, replacement)

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
