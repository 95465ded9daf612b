"""Loader facts: what a DataLoader is, read from it without iterating it."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from autotune.inside.data.loader_variant import start_method
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
