"""``Patches`` replaces attributes and puts them back; ``Seam`` owns one.

Attributes are put back in reverse order, so an owner that was patched twice ends as it was.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable
from functools import partial, update_wrapper, wraps
from types import BuiltinFunctionType, ModuleType
from typing import Any, Self

_ABSENT = object()


class StandIn(partial[Any]):
    """A replacement for a function that is written in C, which behaves as such a function does.

    A program may store a function such as ``os.stat`` as a class attribute, or pickle it. As a
    class attribute, a built-in function is not bound to ``self``, and neither is this. Pickled, it
    is stored by its name, and a process that loads it gets whatever has that name there. A call
    costs the same as one of ``functools.partial``.

    Attributes:
        path: Where the function is found, as in ``os:rename``.
    """

    path: str

    @classmethod
    def of(cls, replacement: Callable[..., Any], original: Any, path: str) -> Self:
        """Return a replacement with the name and the docstring of the original."""
        stand_in = cls(replacement)
        update_wrapper(stand_in, original)
        stand_in.path = path
        return stand_in

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        """Return this object unbound; from Python 3.14 on, a partial would bind like a method."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return pkgutil.resolve_name, (self.path,)


class Patches:
    """A stack of replaced attributes, which ``undo()`` puts back."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, Any]] = []
        self._listed: list[tuple[set[Callable[..., Any]], Callable[..., Any]]] = []
        self._stand_ins: dict[Callable[..., Any], StandIn] = {}

    def replace(self, owner: Any, name: str, replacement: Any) -> None:
        """Replace an attribute of a class or a module until ``undo()``.

        An attribute that the owner only inherits is deleted again by ``undo()``. A function written
        in C is replaced by a ``StandIn``.
        """
        original = vars(owner).get(name, _ABSENT)
        # A Python function would be bound as a method where a class holds it, and pickled as ours.
        if isinstance(owner, ModuleType) and isinstance(original, (BuiltinFunctionType, StandIn)):
            replacement = self._stand_in(replacement, original, f"{owner.__name__}:{name}")
        self._undo.append((owner, name, original, replacement))
        # ``os`` lists which of its functions take dir_fd and the like. shutil looks its functions
        # up there, and would take a replacement that is not listed for one without that support.
        if owner is os:
            for listing in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
                if original in listing:
                    listing.add(replacement)
                    self._listed.append((listing, replacement))
        setattr(owner, name, replacement)

    def wrap(self, owner: Any, name: str, act: Callable[..., Any]) -> None:
        """Have a function be called as *act*, which gets the original before the arguments."""
        original = getattr(owner, name)

        @wraps(original)  # some libraries read signatures
        def call(*args: Any, **kwargs: Any) -> Any:
            return act(original, *args, **kwargs)

        self.replace(owner, name, call)

    def _stand_in(self, replacement: Any, original: Any, path: str) -> StandIn:
        """Return the stand-in of a replacement, the same one each time.

        ``open`` is replaced in ``builtins`` and in ``io``, and ``open is io.open`` must stay true.
        """
        if isinstance(replacement, StandIn):
            return replacement
        if replacement not in self._stand_ins:
            self._stand_ins[replacement] = StandIn.of(replacement, original, path)
        return self._stand_ins[replacement]

    def replaced(self) -> dict[Any, Any]:
        """Return the present replacement of each replaced function, by the original function.

        Attributes that an owner only inherited are not in it.
        """
        return {
            original: getattr(owner, name)
            for owner, name, original, _ in self._undo
            if callable(original)
        }

    @property
    def places(self) -> list[str]:
        """The attributes that are replaced now, such as ``torch.nn.Module.__call__``."""
        owners = (
            (o.__name__ if isinstance(o, ModuleType) else f"{o.__module__}.{o.__qualname__}", name)
            for o, name, *_ in self._undo
        )
        return [f"{owner}.{name}" for owner, name in owners]

    @property
    def is_used(self) -> bool:
        """Whether something is replaced now."""
        return bool(self._undo)

    def undo(self) -> None:
        """Put everything back, last replaced first, but for what the program has replaced since.

        A script may disable ``torch.compile`` by another function, and keeps it.
        """
        for listing, replacement in self._listed:
            listing.discard(replacement)
        self._listed.clear()
        while self._undo:
            owner, name, original, replacement = self._undo.pop()
            if vars(owner).get(name) is not replacement:
                continue
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


class Seam:
    """A place where autotune replaces attributes of PyTorch or Python; the base of such seams."""

    _patches: Patches

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        self._patches.undo()
