"""The seam at PyTorch's iterators under loaders that are no torch DataLoader, as fastai's."""

from __future__ import annotations

from threading import get_ident
from typing import Any

import torch
from torch.utils.data import DataLoader, dataloader

from autotune.inside.code.bare import attributes
from autotune.inside.seams.base import Patches, Seam


class ForeignLoaders(Seam):
    """Notes which loader of another class hands out batches to the thread that trains.

    Called by PyTorch's iterators, on whatever thread asks them, until the first steps are over.

    Attributes:
        last: What handed out the last batch with gradients, as people name it; empty for nothing.
    """

    def __init__(self) -> None:
        self._patches = Patches()
        self._thread = get_ident()
        self.last = ""

    def install(self) -> None:
        """Begin to listen."""
        base = dataloader._BaseDataLoaderIter  # noqa: SLF001 - there is no public place for it
        begin, ask = base.__init__, base.__next__
        noted = self

        def init(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            begin(iterator, loader, *args, **kwargs)
            if not isinstance(loader, DataLoader):
                vars(iterator)["_autotune_loader"] = _name(loader)

        def following(iterator: Any) -> Any:
            name = vars(iterator).get("_autotune_loader")
            if name and torch.is_grad_enabled() and get_ident() == noted._thread:
                noted.last = name
            return ask(iterator)

        self._patches.replace(base, "__init__", init)
        self._patches.replace(base, "__next__", following)


def _name(loader: Any) -> str:
    """Name a loader by its class and its workers; one that only stands for another names that."""
    parts = (attributes(loader) or {}).values()
    owners = [part for part in parts if part is not loader and _holds(part, loader)]
    kind = type(owners[0] if owners else loader)
    workers = getattr(loader, "num_workers", 0)
    return f"{kind.__module__}.{kind.__qualname__} (num_workers={workers})"


def _holds(value: Any, wanted: object) -> bool:
    """Tell whether an object has another as an attribute."""
    return any(part is wanted for part in (attributes(value) or {}).values())
