"""Loader facts: what a DataLoader is, read from it without iterating it.

A loader without end, such as YOLO's ``InfiniteDataLoader``, wraps the batch sampler that PyTorch
made for it: the wrapper holds that ``BatchSampler`` in an attribute and iterates it repeatedly.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from autotune.inside.code.structure import attributes
from autotune.inside.data.loader_options import start_method
from autotune.program.profile import LoaderFacts


def plain_batches(loader: DataLoader[Any]) -> BatchSampler | None:
    """Return the loader's batch sampler if it is torch's own, which makes batches of one size."""
    sampler = loader.batch_sampler
    return sampler if type(sampler) is BatchSampler else None


def foreign_sampler(loader: DataLoader[Any]) -> str:
    """Return the class name of the loader's batch sampler; empty if it is PyTorch's or absent."""
    sampler = loader.batch_sampler
    return "" if sampler is None or type(sampler) is BatchSampler else type(sampler).__name__


def read_facts(loader: DataLoader[Any]) -> LoaderFacts:
    """Return a loader's facts as its attributes tell them; ``KnownLoaders`` adds what tells twins.

    The length of the dataset is None if it has no length yet.
    """
    plain = plain_batches(loader)
    iterable = isinstance(loader.dataset, IterableDataset)
    try:
        length = len(loader.dataset)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - a dataset's __len__ may fail until the program has set it up
        length = None
    return LoaderFacts(
        dataset=type(loader.dataset).__name__,
        dataset_len=length,
        batch_size=None if plain is None else plain.batch_size,
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        pin_memory=bool(loader.pin_memory),
        persistent_workers=loader.persistent_workers,
        sampler=type(loader.sampler if plain is None else plain.sampler).__name__,
        has_batch_sampler=plain is None and loader.batch_sampler is not None,
        iterable=iterable,
        drop_last=loader.drop_last if plain is None else plain.drop_last,
        in_order=loader.in_order,
        start_method=start_method(loader.multiprocessing_context),
    )


def inner_batches(sampler: object) -> BatchSampler | None:
    """Return the only BatchSampler that a sampler holds; None unless there is exactly one."""
    held = _held(sampler)
    return held[0][1] if len(held) == 1 else None


def rewrapped(sampler: Any, inner: Any) -> Any:
    """Return *inner* as the loader's batch sampler, in a copy of its wrapper if it has one.

    Args:
        sampler: The loader's present batch sampler, or the wrapper around it.
        inner: The batch sampler to use.
    """
    held = _held(sampler)
    if len(held) != 1:
        return inner
    name, present = held[0]
    if present is inner:
        return sampler
    copy = object.__new__(type(sampler))
    vars(copy).update(vars(sampler))
    vars(copy)[name] = inner
    return copy


def _held(sampler: object) -> list[tuple[str, BatchSampler]]:
    """Return a wrapper's attributes that are BatchSamplers; empty for a BatchSampler itself."""
    if type(sampler) is BatchSampler:
        return []
    parts = (attributes(sampler) or {}).items()
    return [(name, part) for name, part in parts if type(part) is BatchSampler]
