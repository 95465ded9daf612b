"""The seam at learning-rate schedulers: skips their steps where no optimizer step is counted.

That is within a group of accumulated micro-batches, and in a rig once the endless training loop
has begun.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.seams.accumulation import AccumulationSeam


class SchedulerSeam(Seam):
    """Skips the steps of all schedulers after ``hold()``, and within a group of micro-batches.

    A trial's training loop does not end but a schedule does: OneCycleLR raises after its last step,
    and a linear decay goes below zero. ``SeamSet`` installs it; the patched ``step`` runs on the
    thread that trains. Rates are not changed here: the rates seam scales them in each step.

    Args:
        accumulation: Tells which batches make no step.
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
        for cls in _with_subclasses(LRScheduler):
            if "step" in vars(cls):
                self._wrap(cls)

    def _wrap(self, cls: type[LRScheduler]) -> None:
        original = vars(cls)["step"]
        seam = self

        def step(scheduler: LRScheduler, *args: Any, **kwargs: Any) -> None:
            if not (seam._held or seam._accumulation.holds):
                original(scheduler, *args, **kwargs)

        self._patches.replace(cls, "step", step)


def _with_subclasses(cls: type[LRScheduler]) -> Iterator[type[LRScheduler]]:
    yield cls
    for sub in cls.__subclasses__():
        yield from _with_subclasses(sub)
