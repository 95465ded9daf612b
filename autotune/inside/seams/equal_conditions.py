"""The seam that lets runs of a program compare: equal random numbers, whatever the config.

- Generators begin with the same seed, unless the program seeds them. Under another seed, what the
  program seeds them with is moved as well.
- Items of datasets draw by their index and the number of the pass, whatever the number of workers,
  unless the plan says otherwise. Generators that a dataset holds itself are left alone: each worker
  would have a copy of them, and that is to be noticed.
- Nothing is dropped out, unless the plan says otherwise. Dropout draws in the order of memory, so
  under another memory format it would drop other activations, which says nothing about the config.
- Where ranks are compared, BatchNorm sees a rank's samples alone in one process, too.
- Compiled code draws as eager code does.
"""

from __future__ import annotations

import _random
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import local
from typing import Any
from weakref import WeakKeyDictionary

import numpy
import numpy.random.bit_generator
import torch
from torch.utils.data import dataloader
from torch.utils.data._utils import fetch

from autotune.inside.hubs.patches import Patches
from autotune.inside.seams.equal_layers import normalise_shares, undrop
from autotune.program.rehearsal import TracePlan

SEED = 20_230_401
Call = Callable[..., Any]


class _Entropy(local):
    """Of which generators that nobody seeds get their seeds.

    Each thread has its own: those of Python's queues draw names of files while an item is read.
    """

    def __init__(self) -> None:
        self.dice = _random.Random(SEED)


_entropy = _Entropy()


def equalise(plan: TracePlan, *, compiles: bool = False) -> None:
    """Bring about equal conditions, in this process for good.

    Args:
        plan: Which random state, and whether the program's dropout stays.
    """
    random.seed(SEED + plan.seed)
    numpy.random.seed((SEED + plan.seed) % 2**32)  # noqa: NPY002 - the generator that programs share
    torch.manual_seed(SEED + plan.seed)
    if plan.seed:
        _move_seeds(plan.seed)
    _seed_the_unseeded(SEED + plan.seed)
    if not plan.drops_out:
        undrop()
    if plan.shares > 1:
        normalise_shares(plan.shares)
    if plan.evens_items:
        _even_fetching()
        _send_to_workers(drops_out=plan.drops_out)
    if compiles:
        from torch._inductor import config

        config.fallback_random = True


def _seed_the_unseeded(seed: int) -> None:
    """Give each generator of Python or numpy that is made without a seed one of these numbers.

    Source: ``SeedSequence(None)`` of numpy calls ``randbits`` of its module.
    """
    _entropy.dice.seed(seed)

    def seeded(
        original: Call, self: random.Random, a: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        original(self, _entropy.dice.getrandbits(64) if a is None else a, *args, **kwargs)

    def random_bits(count: int) -> int:
        return _entropy.dice.getrandbits(count)

    patches = Patches()
    patches.wrap(random.Random, "seed", seeded)
    patches.replace(numpy.random.bit_generator, "randbits", random_bits)


def _move_seeds(by: int) -> None:
    """Add a number to the seeds that the program sets for the generators that all code shares."""

    def seed(original: Call, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], int):
            args = (args[0] + by, *args[1:])
        elif isinstance(kwargs.get("seed"), int):
            kwargs["seed"] += by
        return original(*args, **kwargs)

    patches = Patches()
    owners: list[tuple[Any, str]] = [
        (random, "seed"),
        (numpy.random, "seed"),
        (torch, "manual_seed"),
        (torch.random, "manual_seed"),
        (torch.cuda, "manual_seed"),
        (torch.cuda, "manual_seed_all"),
    ]
    for owner, name in owners:
        patches.wrap(owner, name, seed)


def _even_fetching() -> None:
    """Even out the draws of all map-style datasets that loaders of this process read."""
    if fetch._MapDatasetFetcher is not EvenFetcher:  # noqa: SLF001
        Patches().replace(fetch, "_MapDatasetFetcher", EvenFetcher)


def _send_to_workers(*, drops_out: bool) -> None:
    """Let workers do the same, also those that start as new interpreters."""
    iterator: Any = dataloader._BaseDataLoaderIter  # noqa: SLF001
    passes: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def begin(original: Call, self: Any, loader: Any) -> None:
        original(self, loader)
        passes[loader] = passes.get(loader, 0) + 1
        if self._dataset_kind == dataloader._DatasetKind.Map:  # noqa: SLF001
            collate = EvenCollate(self._collate_fn, passes[loader], drops_out=drops_out)
            self._collate_fn = collate

    def reset(original: Call, self: Any, loader: Any, first_iter: bool = False) -> None:  # noqa: FBT001, FBT002
        original(self, loader, first_iter)
        passes[loader] += not first_iter  # its workers stay

    patches = Patches()
    patches.wrap(iterator, "__init__", begin)
    patches.wrap(iterator, "_reset", reset)


class EvenFetcher(fetch._MapDatasetFetcher):  # noqa: SLF001
    """Reads a dataset's items so that each draws by its index.

    The iterator and the workers go on holding the program's dataset, whose type it may look at.
    """

    def __init__(self, dataset: Any, batches: Any, collate: Any, *options: Any) -> None:
        number = collate.begin_pass() if isinstance(collate, EvenCollate) else 0
        super().__init__(EvenItems(dataset, number), batches, collate, *options)


class EvenItems:
    """The items of a dataset, which draw by their index and the number of the pass.

    Attributes:
        __getitems__: Reads several items at once; None if the dataset cannot do that.
    """

    def __init__(self, dataset: Any, number: int) -> None:
        self._dataset, self._number = dataset, number
        has_several = getattr(dataset, "__getitems__", None)
        self.__getitems__ = self._read_several if has_several else None

    def __getitem__(self, index: Any) -> Any:
        with _drawing_by(f"{index!r} {self._number}"):
            return self._dataset[index]

    def _read_several(self, indices: Sequence[Any]) -> Any:
        with _drawing_by(f"{indices!r} {self._number}"):
            return self._dataset.__getitems__(indices)


class EvenCollate:
    """Makes a batch of items, with draws that are the same in each process.

    A worker that starts as a new interpreter unpickles it before it reads the dataset.

    Args:
        drops_out: Whether the program's dropout stays.
    """

    def __init__(
        self, collate: Callable[[Any], Any], number: int = 1, *, drops_out: bool = True
    ) -> None:
        self._collate, self._number, self._drops_out = collate, number, drops_out

    def begin_pass(self) -> int:
        """Return the number of the pass that begins in this process."""
        self._number += 1
        return self._number - 1

    def __call__(self, items: Any) -> Any:
        """Return the batch."""
        with _drawing_by("collate"):
            return self._collate(items)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        _seed_the_unseeded(SEED)
        if not self._drops_out:
            undrop()
        _even_fetching()


@contextmanager
def _drawing_by(what: str) -> Iterator[None]:
    """Seed the global generators of this process for a while."""
    seed = zlib.crc32(what.encode())
    entropy = _entropy.dice.getstate()
    python, arrays = random.getstate(), numpy.random.get_state()  # noqa: NPY002
    tensors = torch.random.get_rng_state()
    random.seed(seed)
    numpy.random.seed(seed)  # noqa: NPY002 - the generator that programs share
    torch.default_generator.manual_seed(seed)
    _entropy.dice.seed(seed)
    try:
        yield
    finally:
        _entropy.dice.setstate(entropy)
        random.setstate(python)
        numpy.random.set_state(arrays)  # noqa: NPY002
        torch.random.set_rng_state(tensors)
