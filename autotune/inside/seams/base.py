"""Patches: attributes replaced on PyTorch's classes, put back in reverse order."""

from __future__ import annotations

from typing import Any

_ABSENT = object()


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
