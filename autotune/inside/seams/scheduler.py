"""The seam at learning-rate schedulers: they wait for steps, and go as high as the batch asks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any
from weakref import WeakSet

from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
)
from torch.optim.swa_utils import SWALR

from autotune.inside.seams.accumulation import AccumulationSeam
from autotune.inside.seams.base import Patches

OWN_RATES: Mapping[type[LRScheduler], tuple[str, ...]] = {
    OneCycleLR: ("max_lr",),
    CyclicLR: ("base_lr", "max_lr"),
    CosineAnnealingLR: ("eta_min",),
    CosineAnnealingWarmRestarts: ("eta_min",),
    ReduceLROnPlateau: ("min_lr",),
    SWALR: ("swa_lr",),
}

STORED_RATES = ("base_lrs", "max_lrs", "min_lrs")


class SchedulerSeam:
    """Holds every scheduler once ``hold()`` is called, and within a group of micro-batches.

    The training feed never ends, a schedule does: OneCycleLR raises after its last step, and a
    linear decay goes below zero.

    Most schedules multiply the rates of the optimizer's groups. Those that bring rates of their own
    (OneCycleLR, CyclicLR) get them scaled as the groups' are.

    Args:
        accumulation: Tells which batches make no step.
        factor: Gives the factor on learning rates.
    """

    def __init__(self, accumulation: AccumulationSeam, factor: Callable[[], float]) -> None:
        self._accumulation = accumulation
        self._factor = factor
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

    def scale(self, by: float) -> None:
        """Scale the rates that schedulers keep beside those in the optimizer's groups."""
        for scheduler in self._schedulers:
            for name in STORED_RATES:
                if rates := vars(scheduler).get(name):
                    vars(scheduler)[name] = [by * rate for rate in rates]
            if floor := vars(scheduler).get("eta_min"):
                vars(scheduler)["eta_min"] = by * floor

    def install(self) -> None:
        """Wrap ``step`` of every scheduler class that has its own, and rates that are passed."""
        for cls, names in OWN_RATES.items():
            self._scale_rates(cls, names)
        self._know_schedulers()
        for cls in _with_subclasses(LRScheduler):
            if "step" in vars(cls):
                self._wrap(cls)

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        self._patches.undo()

    def _know_schedulers(self) -> None:
        original = LRScheduler.__init__
        seam = self

        @wraps(original)
        def init(scheduler: LRScheduler, *args: Any, **kwargs: Any) -> None:
            original(scheduler, *args, **kwargs)
            seam._schedulers.add(scheduler)

        self._patches.replace(LRScheduler, "__init__", init)

    def _scale_rates(self, cls: type[LRScheduler], names: tuple[str, ...]) -> None:
        original = cls.__init__
        signature = inspect.signature(original)
        seam = self

        @wraps(original)
        def init(scheduler: LRScheduler, *args: Any, **kwargs: Any) -> None:
            call = signature.bind(scheduler, *args, **kwargs)
            call.apply_defaults()
            for name in names:
                rates, factor = call.arguments[name], seam._factor()
                is_several = isinstance(rates, (list, tuple))
                call.arguments[name] = [factor * r for r in rates] if is_several else factor * rates
            original(*call.args, **call.kwargs)

        self._patches.replace(cls, "__init__", init)

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
