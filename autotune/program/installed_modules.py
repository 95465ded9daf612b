"""Modules of the user's environment, found without importing them: they may import torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path


def find_module(dotted: str, roots: Iterable[Path]) -> tuple[Path, Path] | None:
    """Find a module's file.

    Args:
        dotted: Its name.
        roots: The folders of the import path, in order.

    Returns:
        Its import root, and its file: ``__init__.py`` of a package. None where there is none.
    """
    relative = Path(*dotted.split("."))
    for root in (Path(entry).resolve() for entry in roots):
        for source in (root / relative.with_suffix(".py"), root / relative / "__init__.py"):
            if source.is_file():
                return root, source
    return next(_installed_in_place(dotted), None)


def _installed_in_place(dotted: str) -> Iterator[tuple[Path, Path]]:
    """Ask the import system for the top package: ``pip install -e`` may use a finder for it."""
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
