"""Acting on a module once the program has imported it: importing it ourselves takes seconds."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls back once a module has been imported, before whoever imports it goes on."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Callable[[ModuleType], None]]] = {}
        self._busy: set[str] = set()

    def wait_for(self, name: str, then: Callable[[ModuleType], None]) -> None:
        """Call *then* with a module when it is imported; at once, where it has been.

        Args:
            name: The module.
            then: Gets it.
        """
        module = sys.modules.get(name)
        if module is not None:
            then(module)
            return
        self._waiting.setdefault(name, []).append(then)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Wait no longer."""
        self._waiting.clear()
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]

    def find_spec(
        self,
        fullname: str,
        path: Any = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Wrap the loader of a module that is waited for; leave all others to the next finder."""
        callbacks = self._waiting.get(fullname)
        if callbacks is None or fullname in self._busy:
            return None
        self._busy.add(fullname)
        try:
            spec = find_spec(fullname)
        finally:
            self._busy.discard(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for then in callbacks:
                then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
