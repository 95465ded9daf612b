"""The seam that lets runs of a program compare: equal random numbers, whatever the config.

- The generators of Python, numpy and torch begin with the same seed, unless the program seeds them.
- Items of datasets draw by their index. An augmentation draws from the global generators, which go
  on from item to item in the program's own process and are seeded anew in each worker. So another
  number of workers draws other numbers, as good as the program's own. Generators that a dataset
  holds itself are left alone: each worker would have a copy of them, and that is to be noticed.
- Nothing is dropped out. Dropout draws in the order of memory, so under another memory format it
  would drop other activations, which says nothing about the config.
- Compiled code draws as eager code does.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from torch.nn import functional
from torch.utils.data import dataloader

from autotune.inside.seams.base import Patches

SEED = 20_230_401
# Where dropouts take their probability, counted from 0
DROPOUTS = {
    "dropout": 1,
    "dropout1d": 1,
    "dropout2d": 1,
    "dropout3d": 1,
    "alpha_dropout": 1,
    "feature_alpha_dropout": 1,
    "scaled_dot_product_attention": 4,
}
PROBABILITIES = ("p", "dropout_p")
PLAIN = "_evened"  # the attribute of an EvenDataset that it does not pass on


def even_out(*, compiles: bool = False) -> None:
    """Bring about equal conditions, in this process for good.

    Args:
        compiles: Whether the config compiles the model.
    """
    random.seed(SEED)
    numpy.random.seed(SEED % 2**32)  # noqa: NPY002 - the generator that programs share
    torch.manual_seed(SEED)
    patches = Patches()
    for name, place in DROPOUTS.items():
        original = getattr(functional, name)
        patches.replace(functional, name, _without_dropping(original, place))
    _even_items()
    if compiles:
        from torch._inductor import config

        config.fallback_random = True


def _without_dropping(original: Callable[..., Any], place: int) -> Callable[..., Any]:
    def evened(*args: Any, **kwargs: Any) -> Any:
        if len(args) > place:
            args = (*args[:place], 0.0, *args[place + 1 :])
        else:
            name = next((n for n in PROBABILITIES if n in kwargs), None)
            kwargs[name or ("dropout_p" if place > 1 else "p")] = 0.0
        return original(*args, **kwargs)

    return evened


def _even_items() -> None:
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
