"""The seams at learning-rate schedulers.

Steps are skipped where no optimizer step is counted: within a group of accumulated micro-batches,
and in a rig once the endless training loop has begun. With several ranks, ReduceLROnPlateau follows
the mean of their metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import distributed
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.ranks.group import Group
from autotune.inside.seams.accumulation import AccumulationSeam


class SchedulerSeam(Seam):
    """Skips the steps of all schedulers after ``hold()``, and within a group of micro-batches.

    A trial's training loop does not end but a schedule does: OneCycleLR raises after its last step,
    and a linear decay goes below zero. ``SeamSet`` installs it; the patched ``step`` runs on the
    thread that trains. Rates are not changed here: the rates seam scales them in each step.
    """

    def __init__(self, accumulation: AccumulationSeam) -> None:
        self._accumulation = accumulation
        self._held = False
        self._patches = Patches()

    def hold(self) -> None:
        """Skip all scheduler steps from here on."""
        self._held = True

    def install(self) -> None:
        """Wrap ``step`` of every scheduler class that defines it.

        Classes defined later inherit or call a wrapped ``step``; one that overrides it without
        calling a base class is not held.
        """
        for scheduler in _with_subclasses(LRScheduler):
            if "step" in vars(scheduler):
                self._patches.wrap(scheduler, "step", self._step)

    def _step(self, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        if not (self._held or self._accumulation.holds):
            original(*args, **kwargs)


def _with_subclasses(cls: type[LRScheduler]) -> Iterator[type[LRScheduler]]:
    yield cls
    for sub in cls.__subclasses__():
        yield from _with_subclasses(sub)


class PlateauSeam(Seam):
    """Lets ``ReduceLROnPlateau`` follow the mean of all ranks' metrics.

    Each rank would otherwise follow its own share of the data, and choose another rate.
    ``DistributionSeam`` installs it; the program's own calls of ``step()`` run it, on the thread
    that trains. All ranks must call it, because they communicate.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._patches = Patches()

    def install(self) -> None:
        """Begin to average the metrics."""
        self._patches.wrap(ReduceLROnPlateau, "step", self._step)

    def _step(
        self, original: Callable[..., None], scheduler: Any, metrics: Any, *args: Any, **named: Any
    ) -> None:
        if distributed.is_initialized():
            own = torch.tensor([float(metrics)], dtype=torch.float64)
            every = [torch.empty_like(own) for _ in range(self._group.world_size)]
            distributed.all_gather(every, own)
            metrics = sum(float(metric) for metric in every) / len(every)
        original(scheduler, metrics, *args, **named)
