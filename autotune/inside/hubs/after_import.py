"""A finder that acts on a module as soon as the program has imported it.

Some seams patch libraries such as torchvision or MLflow, which the program may or may not import.
Importing them just in case would add seconds to the start of each trial.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls back as soon as a module has been imported, before the importing code continues.

    The seams that patch optional libraries make one, and so does a process that only watches
    whether it trains. It stands first in ``sys.meta_path`` while it waits. Python calls it, and it
    calls back, on the thread that imports the module.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, list[Callable[[ModuleType], None]]] = {}
        self._busy: set[str] = set()

    def wait_for(self, name: str, then: Callable[[ModuleType], None]) -> None:
        """Call a function with a module once it is imported; at once if it already is."""
        module = sys.modules.get(name)
        if module is not None:
            then(module)
            return
        self._waiting.setdefault(name, []).append(then)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop waiting: modules that are imported later are left alone."""
        self._waiting.clear()
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]

    def find_spec(
        self,
        fullname: str,
        path: Any = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the spec of a module that is waited for, with a loader that calls back.

        For all other modules it returns None, which leaves them to the next finder.
        """
        callbacks = self._waiting.get(fullname)
        if callbacks is None or fullname in self._busy:
            return None
        self._busy.add(fullname)  # importlib's find_spec below asks this finder again
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
