"""The seam at torch functions that the program imported by name before the seams were installed.

``from torch.nn.utils import clip_grad_norm_`` binds torch's function in the program's module, so a
later patch of the attribute in torch does not reach it. This happens where ``autotune.apply()`` is
called in a running program. Classes are patched in place and need no such treatment.

Not covered: functions that the program holds in other places, such as default arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType

from autotune.inside.hubs.patches import Patches, Seam

# Top-level packages that are never patched. autotune's own modules must keep torch's originals.
OURS = ("torch", "autotune")
FUNCTIONS = {FunctionType, BuiltinFunctionType}


class ImportedSeam(Seam):
    """Replaces torch functions in the modules that have imported them by name.

    ``SeamSet.install()`` calls ``note()``, installs the other seams, and calls ``spread()``.
    """

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], object] = {}
        self._patches = Patches()

    def note(self) -> None:
        """Remember all module-level functions of torch, before the other seams replace some."""
        self._before = {
            (key, name): value
            for key, module in _modules(of_torch=True)
            for name, value in vars(module).items()
            if type(value) in FUNCTIONS  # isinstance() would run the code of lazy proxy objects
        }

    def spread(self) -> None:
        """Replace the functions that were replaced in torch in all other modules, too.

        Covers all modules that are loaded now, whether they belong to the program or to a library.
        ``remove()`` undoes it.
        """
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
    for name, module in [*sys.modules.items()]:
        package = name.partition(".")[0]
        is_wanted = package == "torch" if of_torch else package not in OURS
        if is_wanted and issubclass(type(module), ModuleType):
            yield name, module
