"""Loader sizes: batches and samples of a loader's epochs, under its present options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader

from autotune.inside.data.built_loaders import BuiltLoaders
from autotune.inside.data.loader_facts import plain_batches
from autotune.inside.data.loader_shares import LoaderShares
from autotune.inside.micro_batches import EpochShape
from autotune.inside.ranks.data_sharding import share_of


class LoaderSizes:
    """Counts the batches and samples of loaders, and remembers the lengths that the program read.

    Args:
        length: PyTorch's ``DataLoader.__len__``.
        built: The program's loaders.
        shares: How the training loader's data are divided.
    """

    def __init__(
        self, length: Callable[[DataLoader[Any]], int], built: BuiltLoaders, shares: LoaderShares
    ) -> None:
        self._length = length
        self._built = built
        self._shares = shares
        self._read: WeakKeyDictionary[DataLoader[Any], int] = WeakKeyDictionary()

    def length(self, loader: DataLoader[Any]) -> int | None:
        """Return the number of batches in an epoch; None for data without a length."""
        try:
            return self._length(loader)
        except Exception:  # noqa: BLE001 - the program did not ask, so its error must not end it
            return None

    def note_read(self, loader: DataLoader[Any], batches: int) -> None:
        """Note which length the program has got for a training pass."""
        self._read[loader] = batches

    def length_read(self, loader: DataLoader[Any]) -> int | None:
        """Return the length that the program last read from a loader.

        If the program has not read it, return the loader's present length; None for data without
        one.
        """
        read = self._read.get(loader)
        return self.length(loader) if read is None else read

    def dataset_len(self, loader: DataLoader[Any]) -> int | None:
        """Return the number of samples per epoch in this process; None for data without a length.

        For the training loader of several ranks this is the rank's share.
        """
        facts = self._built.facts(loader)
        if facts.dataset_len is None or not self._shares.divides(loader):
            return facts.dataset_len
        drop_last = facts.drop_last or facts.iterable
        return share_of(facts.dataset_len, self._shares.group, drop_last=drop_last)

    def batch_size(self, loader: DataLoader[Any]) -> int | None:
        """Return the samples per batch; None if the program's own code makes the batches."""
        plain = self._built.batches(loader)
        return None if plain is None else plain.batch_size

    def round_of(self, loader: DataLoader[Any]) -> int | None:
        """Return the number of batches until the data repeat; None if unknown.

        Differs from ``length()`` for a loader whose sampler cycles through the data endlessly.
        """
        plain = self._built.batches(loader)
        try:
            return self.length(loader) if plain is None else len(plain)
        except Exception:  # noqa: BLE001 - the program's sampler may have no length
            return None

    def epoch_of(self, loader: DataLoader[Any]) -> EpochShape:
        """Return the number of batches in an epoch and their sizes.

        The sizes are unknown if the program's own code makes the batches or if the data have no
        length.
        """
        batches, plain = self.length(loader), plain_batches(loader)
        dataset_len = self.dataset_len(loader)
        if plain is None or dataset_len is None:
            return EpochShape(batches)
        size = plain.batch_size
        last = size if plain.drop_last else (dataset_len - 1) % size + 1
        return EpochShape(batches, size, last)
