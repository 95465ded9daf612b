"""Patches: attributes replaced on PyTorch's classes, put back in reverse order."""

from __future__ import annotations

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

    def replace(self, owner: Any, name: str, replacement: Any) -> None:
        """Replace an attribute; what an owner only inherits is deleted again at the end."""
        self._undo.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, replacement)

    def undo(self) -> None:
        """Put everything back, last replaced first."""
        while self._undo:
            owner, name, original = self._undo.pop()
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
