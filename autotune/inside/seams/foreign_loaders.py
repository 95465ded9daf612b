"""The seam at PyTorch's loader iterators where another class than ``DataLoader`` uses them.

fastai's loader, for example, is not a torch ``DataLoader`` but iterates with torch's iterators.
autotune cannot set its options; the name is noted to tell the user why.
"""

from __future__ import annotations

from threading import get_ident
from typing import Any

import torch
from torch.utils.data import DataLoader, dataloader

from autotune.inside.code.structure import attributes
from autotune.inside.hubs.patches import Patches, Seam


class ForeignLoaders(Seam):
    """Notes which loader of another class hands out batches to the thread that trains.

    ``SeamSet`` makes it on the main thread, which is taken for the one that trains. PyTorch's
    iterators call it on any thread that asks for a batch, until the third step; batches on other
    threads and batches without gradients, as in evaluation, are ignored.

    Attributes:
        last: The loader of the last batch, such as ``fastai.data.load.DataLoader (num_workers=1)``;
            empty if there was none.
    """

    def __init__(self) -> None:
        self._patches = Patches()
        self._thread = get_ident()
        self.last = ""

    def install(self) -> None:
        """Begin to watch PyTorch's loader iterators."""
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
    """Return the class of a loader and its number of workers, for messages.

    Libraries give PyTorch's iterator a small object that only stands in for their loader. If an
    attribute of *loader* refers back to it, that attribute is the loader that users know.
    """
    parts = (attributes(loader) or {}).values()
    owners = [part for part in parts if part is not loader and _holds(part, loader)]
    kind = type(owners[0] if owners else loader)
    workers = getattr(loader, "num_workers", 0)
    return f"{kind.__module__}.{kind.__qualname__} (num_workers={workers})"


def _holds(value: Any, wanted: object) -> bool:
    """Tell whether one of the attributes of *value* is *wanted*."""
    return any(part is wanted for part in (attributes(value) or {}).values())
