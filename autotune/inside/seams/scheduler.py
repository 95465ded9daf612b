"""The seam at learning-rate schedulers: they wait for steps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps
from typing import Any
from weakref import WeakSet

from torch.optim.lr_scheduler import LRScheduler

from autotune.inside.seams.accumulation import AccumulationSeam
from autotune.inside.seams.base import Patches, Seam


class SchedulerSeam(Seam):
    """Holds every scheduler once ``hold()`` is called, and within a group of micro-batches.

    The training feed never ends, a schedule does: OneCycleLR raises after its last step, and a
    linear decay goes below zero.

    What they do with rates is theirs: the factor for another batch comes on them in each step.

    Args:
        accumulation: Tells which batches make no step.
    """

    def __init__(self, accumulation: AccumulationSeam) -> None:
        self._accumulation = accumulation
        self._held = False
        self._schedulers: WeakSet[LRScheduler] = WeakSet()
        self._patches = Patches()

    @property
    def schedulers(self) -> list[LRScheduler]:
        """The living schedulers."""
        return list(self._schedulers)

    def hold(self) -> None:
        """Let no scheduler step any more."""
        self._held = True

    def install(self) -> None:
        """Wrap ``step`` of every scheduler class that has its own."""
        self._know_schedulers()
        for cls in _with_subclasses(LRScheduler):
            if "step" in vars(cls):
                self._wrap(cls)

    def _know_schedulers(self) -> None:
        original = LRScheduler.__init__
        seam = self

        @wraps(original)  # Lightning looks at the signature
        def init(scheduler: LRScheduler, *args: Any, **kwargs: Any) -> None:
            original(scheduler, *args, **kwargs)
            seam._schedulers.add(scheduler)

        self._patches.replace(LRScheduler, "__init__", init)

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
