"""The seam at random numbers where several ranks train: alike for set-up, different for training.

Before training, a script may split its data or number its labels at random: all ranks must do so
alike. From the first batch on, each rank draws numbers of its own, for dropout, augmentation, and
batches that are drawn without a loader; those of the first rank are the program's.
"""

from __future__ import annotations

import random

import numpy
import torch

from autotune.inside.ranks.group import Group
from autotune.inside.seams.base import Patches, Seam


class RandomnessSeam(Seam):
    """Seeds torch, numpy and Python's ``random`` in this process."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._differs = False
        self._patches = Patches()

    def agree(self) -> None:
        """Start with one seed on all ranks."""
        if self._group.is_first:
            self._group.store.set("seed", random.SystemRandom().randrange(1 << 32))
        seed: int = self._group.store.get("seed")
        random.seed(seed)
        numpy.random.seed(seed)  # noqa: NPY002 - what programs draw from
        torch.manual_seed(seed)

    def differ(self) -> None:
        """Draw other numbers than the other ranks from here on, also after the program seeds."""
        if self._differs:
            return
        self._differs = True
        rank = self._group.rank
        if rank == 0:
            return
        original = torch.manual_seed
        original(torch.initial_seed() + rank)
        random.seed(f"{random.random()} on rank {rank}")
        drawn = int(numpy.random.randint(1 << 31))  # noqa: NPY002 - what programs draw from
        numpy.random.seed((drawn + rank) % (1 << 32))  # noqa: NPY002

        def manual_seed(seed: int) -> torch.Generator:
            return original(int(seed) + rank)

        self._patches.replace(torch, "manual_seed", manual_seed)
