"""The seam at ReduceLROnPlateau: with several ranks, all follow the mean of their metrics."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed
from torch.optim.lr_scheduler import ReduceLROnPlateau

from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.ranks.group import Group


class PlateauSeam(Seam):
    """Lets ``ReduceLROnPlateau`` follow the mean of all ranks' metrics.

    Each rank would otherwise follow its own share of the data, and choose another rate.
    ``DistributionSeam`` installs it; the program's own calls of ``step()`` run it, on the thread
    that trains. All ranks must call it, because they communicate.

    Args:
        group: The processes that train together.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._patches = Patches()

    def install(self) -> None:
        """Begin to average the metrics."""
        original = ReduceLROnPlateau.step
        group = self._group

        def step(scheduler: ReduceLROnPlateau, metrics: Any, *args: Any, **kwargs: Any) -> None:
            if distributed.is_initialized():
                own = torch.tensor([float(metrics)], dtype=torch.float64)
                every = [torch.empty_like(own) for _ in range(group.world_size)]
                distributed.all_gather(every, own)
                metrics = sum(float(metric) for metric in every) / len(every)
            original(scheduler, metrics, *args, **kwargs)

        self._patches.replace(ReduceLROnPlateau, "step", step)
