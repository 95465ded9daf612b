"""The seam at random numbers of several ranks: equal during set-up, different during training.

Before training, a script may split its data or number its labels at random, and all ranks must get
the same result. From the first batch on, each rank must draw other numbers for dropout,
augmentation, and batches that are drawn without a loader. The first rank keeps the numbers that the
program would draw as one process.
"""

from __future__ import annotations

import random

import numpy
import torch

from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.ranks.group import Group


class RankSeedsSeam(Seam):
    """Seeds torch, numpy and Python's ``random`` in this process, for the distribution seam.

    Attributes:
        is_agreed: Whether all ranks begin with the same seeds.
    """

    def __init__(self, group: Group) -> None:
        self.is_agreed = False
        self._group = group
        self._differs = False
        self._patches = Patches()

    def agree(self) -> None:
        """Seed all ranks with one random number of the first, unless they begin alike anyway."""
        if self.is_agreed:
            return
        if self._group.is_first:
            self._group.store.set("seed", random.SystemRandom().randrange(1 << 32))
        seed: int = self._group.store.get("seed")
        random.seed(seed)
        numpy.random.seed(seed)  # noqa: NPY002 - what programs draw from
        torch.manual_seed(seed)

    def differ(self) -> None:
        """Make this rank draw other random numbers than the others from here on.

        ``torch.manual_seed`` adds the rank to later seeds of the program's, too. Only the first
        call acts, and the first rank stays as it is.
        """
        rank = self._group.rank
        if self._differs or rank == 0:
            return
        self._differs = True
        original = torch.manual_seed
        original(torch.initial_seed() + rank)
        random.seed(f"{random.random()} on rank {rank}")
        drawn = int(numpy.random.randint(1 << 31))  # noqa: NPY002 - what programs draw from
        numpy.random.seed((drawn + rank) % (1 << 32))  # noqa: NPY002

        def manual_seed(seed: int) -> torch.Generator:
            return original(int(seed) + rank)

        self._patches.replace(torch, "manual_seed", manual_seed)
