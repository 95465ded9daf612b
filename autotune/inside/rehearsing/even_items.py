"""Let items draw the same random numbers in whichever process they are loaded.

An augmentation draws from the global generators, which go on from item to item in the program's own
process and are seeded anew in each worker. So another number of workers draws other numbers, as
good as the program's own. To compare what is trained, these generators are seeded for each item.

Generators that a dataset holds itself are left alone: each worker would have a copy of them, and
that is to be noticed.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from torch.utils.data import dataloader

from autotune.inside.seams.base import Patches

PLAIN = "_evened"  # the attribute of an EvenDataset that it does not pass on


def install() -> None:
    """Even out the draws of all map-style datasets that loaders read from now on."""
    iterator: Any = dataloader._BaseDataLoaderIter  # noqa: SLF001
    original = iterator.__init__

    def begin(self: Any, loader: Any) -> None:
        original(self, loader)
        if self._dataset_kind == dataloader._DatasetKind.Map:  # noqa: SLF001
            self._dataset = EvenDataset(self._dataset)
            self._collate_fn = EvenCollate(self._collate_fn)

    Patches().replace(iterator, "__init__", begin)


class EvenDataset:
    """A dataset whose items draw by their index; all else is the dataset's own."""

    def __init__(self, dataset: Any) -> None:
        object.__setattr__(self, PLAIN, dataset)

    def __getitem__(self, index: Any) -> Any:
        with _drawing_by(repr(index)):
            return self.__dict__[PLAIN][index]

    def __len__(self) -> int:
        return len(self.__dict__[PLAIN])

    def __getattr__(self, name: str) -> Any:
        if PLAIN not in self.__dict__ or (name.startswith("__") and name != "__getitems__"):
            raise AttributeError(name)
        own = getattr(self.__dict__[PLAIN], name)
        return _evened(own) if name == "__getitems__" else own

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__[PLAIN], name, value)

    def __reduce__(self) -> tuple[type[EvenDataset], tuple[Any]]:
        return EvenDataset, (self.__dict__[PLAIN],)


class EvenCollate:
    """A function that makes a batch of items, whose draws are the same in each process."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, items: Any) -> Any:
        """Return the batch."""
        with _drawing_by("collate"):
            return self._collate(items)


def _evened(get_items: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
    def even(indices: Sequence[Any]) -> Any:
        with _drawing_by(repr(indices)):
            return get_items(indices)

    return even


@contextmanager
def _drawing_by(what: str) -> Iterator[None]:
    """Seed the global generators of this process for a while."""
    seed = zlib.crc32(what.encode())
    python, arrays = random.getstate(), numpy.random.get_state()  # noqa: NPY002
    tensors = torch.random.get_rng_state()
    random.seed(seed)
    numpy.random.seed(seed)  # noqa: NPY002 - the generator that programs share
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)  # noqa: NPY002
        torch.random.set_rng_state(tensors)
