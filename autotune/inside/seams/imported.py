"""The seam at names that were imported before the seams came, as ``autotune.apply()`` finds them.

``from torch.nn.utils import clip_grad_norm_`` binds torch's function in the program's module, where
replacing torch's own attribute no longer reaches. Classes are changed in place and need none of it.

Not covered: functions that the program holds in other places, such as default arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType

from autotune.inside.seams.base import Patches, Seam

OURS = ("torch", "autotune")  # by the first part of a module's name: they are not the program's
FUNCTIONS = {FunctionType, BuiltinFunctionType}


class ImportedSeam(Seam):
    """Gives modules that have imported torch's functions by name what stands in their place."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], object] = {}
        self._patches = Patches()

    def note(self) -> None:
        """Look at torch's functions before any is replaced."""
        self._before = {
            (key, name): value
            for key, module in _modules(of_torch=True)
            for name, value in vars(module).items()
            if type(value) in FUNCTIONS  # a proxy may do anything where isinstance() asks it
        }

    def spread(self) -> None:
        """Replace, wherever they were imported, those functions that were replaced in torch."""
        stands_for: dict[int, tuple[object, object]] = {}
        for (module, name), before in self._before.items():
            now = vars(sys.modules[module]).get(name, before)
            if now is not before:
                stands_for.setdefault(id(before), (before, now))
        self._before = {}
        for _, owner in _modules(of_torch=False):
            for name, value in [*vars(owner).items()]:
                before, now = stands_for.get(id(value), (None, None))
                if before is not None and before is value:
                    self._patches.replace(owner, name, now)


def _modules(*, of_torch: bool) -> Iterator[tuple[str, ModuleType]]:
    """Yield loaded modules with their names: torch's, or the program's and its libraries'."""
    for name, module in [*sys.modules.items()]:
        package = name.partition(".")[0]
        is_wanted = package == "torch" if of_torch else package not in OURS
        if is_wanted and issubclass(type(module), ModuleType):
            yield name, module
