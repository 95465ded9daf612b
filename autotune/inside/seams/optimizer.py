"""The seam at the optimizer: its steps are counted and its learning rate follows the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from autotune.inside.seams.base import Patches
from autotune.lr import LrRule, lr_factor


class OptimizerSeam:
    """Hooks every optimizer's step and scales learning rates.

    Rates are scaled where groups are added, so schedulers built afterwards follow. When the batch
    changes in a running program, ``lr`` and ``initial_lr`` of the groups are scaled; a scheduler
    that computes rates from its own stored base keeps that base, which matters to no measurement.
    """

    def __init__(self, stepped: Callable[[Optimizer], None]) -> None:
        self._stepped = stepped
        self._patches = Patches()
        self._hook: Any = None
        self._optimizers: WeakSet[Optimizer] = WeakSet()
        self._factor = 1.0
        self._rule = LrRule.NONE
        self._reference_batch: int | None = None

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that have parameter groups, in no order."""
        return list(self._optimizers)

    def set_rule(self, rule: LrRule, reference_batch: int | None) -> None:
        """Say how rates follow the batch, and for which batch the program chose its own."""
        self._rule, self._reference_batch = rule, reference_batch

    def follow_batch(self, batch: int) -> None:
        """Scale all learning rates, present and future, to a global batch of this size."""
        if self._reference_batch is None:
            return
        factor = lr_factor(self._rule, self._reference_batch, batch)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                _scale(group, factor / self._factor)
        self._factor = factor

    def install(self) -> None:
        """Begin to listen."""
        original = Optimizer.add_param_group
        seam = self

        def add_param_group(optimizer: Optimizer, param_group: dict[str, Any]) -> None:
            original(optimizer, param_group)
            seam._optimizers.add(optimizer)
            if seam._factor != 1.0:
                _scale(optimizer.param_groups[-1], seam._factor)

        self._patches.replace(Optimizer, "add_param_group", add_param_group)
        self._hook = register_optimizer_step_post_hook(
            lambda optimizer, _args, _kwargs: seam._stepped(optimizer)
        )

    def stop_listening(self) -> None:
        """Count no more steps; learning rates are still scaled."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        self.stop_listening()
        self._patches.undo()


def _scale(group: dict[str, Any], factor: float) -> None:
    for key in ("lr", "initial_lr"):
        rate = group.get(key)
        if isinstance(rate, torch.Tensor):
            group[key] = rate * factor  # a new tensor: groups may share one
        elif rate is not None:
            group[key] = rate * factor
