"""The seam at learning-rate schedulers.

Steps are skipped where no optimizer step is counted: within a group of accumulated micro-batches,
and in a rig once the endless training loop has begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.seams.accumulation import AccumulationSeam


class SchedulerSeam(Seam):
    """Skips the steps of all schedulers that are held, and those within a group of micro-batches.

    A trial's training loop does not end but a schedule does: OneCycleLR raises after its last step,
    and a linear decay goes below zero. ``SeamSet`` installs it; the patched ``step`` runs on the
    thread that trains. Rates are not changed here: the rates seam scales them in each step.

    Attributes:
        is_held: Whether all steps are skipped.
    """

    def __init__(self, accumulation: AccumulationSeam) -> None:
        self._accumulation = accumulation
        self.is_held = False
        self._patches = Patches()

    def install(self) -> None:
        """Wrap ``step`` of every scheduler class that defines it.

        Classes defined later inherit or call a wrapped ``step``; one that overrides it without
        calling a base class is not held.
        """
        for scheduler in _with_subclasses(LRScheduler):
            if "step" in vars(scheduler):
                self._patches.wrap(scheduler, "step", self._step)

    def _step(self, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        if not (self.is_held or self._accumulation.holds):
            original(*args, **kwargs)


def _with_subclasses(cls: type[LRScheduler]) -> Iterator[type[LRScheduler]]:
    yield cls
    for sub in cls.__subclasses__():
        yield from _with_subclasses(sub)
