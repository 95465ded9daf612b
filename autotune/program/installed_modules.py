"""Find the files of the user's modules without importing them.

Importing a module runs its code and may import torch, which the parent process must never do.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path


def find_module(dotted: str, roots: Iterable[Path]) -> tuple[Path, Path] | None:
    """Return the import root and the file of a module, without importing it.

    The folders are searched first. A module that is not in them may still be installed in editable
    mode, so the import system is asked last.

    Args:
        dotted: The module's dotted name.
        roots: The folders of the import path, in order.

    Returns:
        The import root and the source file (``__init__.py`` for a package); None if not found.
    """
    relative = Path(*dotted.split("."))
    for root in (Path(entry).resolve() for entry in roots):
        for source in (root / relative.with_suffix(".py"), root / relative / "__init__.py"):
            if source.is_file():
                return root, source
    return next(_installed_in_place(dotted), None)


def _installed_in_place(dotted: str) -> Iterator[tuple[Path, Path]]:
    """Yield candidates for a module of a package that was installed with ``pip install -e``.

    Such an install may register an import finder instead of a folder on the path, so only the
    import system knows where the top-level package is.
    """
    # Only the top package is looked up: find_spec() of a submodule would import its parents.
    top, *below = dotted.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # ValueError: a module without a spec, such as __main__
        return
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        package = Path(place).resolve()
        module = package.joinpath(*below)
        for source in (module.with_suffix(".py"), module / "__init__.py"):
            if source.is_file():
                yield package.parent, source
