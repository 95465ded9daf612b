"""The seam at the optimizer: its steps are counted and its learning rate follows the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from autotune.inside.seams.base import Patches
from autotune.lr import LrRule, lr_factor


class OptimizerSeam:
    """Hooks every optimizer's step and scales learning rates.

    Rates are scaled where groups are added, so schedulers built afterwards follow. When the batch
    changes in a running program, ``lr`` and ``initial_lr`` of the groups are scaled; a scheduler
    that computes rates from its own stored base keeps that base, which matters to no measurement.
    """

    def __init__(
        self, before_first: Callable[[], None], stepped: Callable[[Optimizer], None]
    ) -> None:
        self._before_first = before_first
        self._stepped = stepped
        self._patches = Patches()
        self._hook: Any = None
        self._pre_hook: Any = None
        self._has_begun = False
        self._watcher: tuple[Callable[[], None], Callable[[], None]] | None = None
        self._optimizers: WeakSet[Optimizer] = WeakSet()
        self._scaled: set[int] = set()
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
        groups = {id(g): g for optimizer in self._optimizers for g in optimizer.param_groups}
        for group in groups.values():  # optimizers that wrap another share its groups
            _scale(group, factor / self._factor)
        self._scaled |= groups.keys()
        self._factor = factor

    def forget_batch(self) -> None:
        """Put all learning rates back to the program's own."""
        if self._reference_batch is not None:
            self.follow_batch(self._reference_batch)

    def install(self) -> None:
        """Begin to listen."""
        original = Optimizer.add_param_group
        seam = self

        def add_param_group(optimizer: Optimizer, param_group: dict[str, Any]) -> None:
            original(optimizer, param_group)
            seam._optimizers.add(optimizer)
            group = optimizer.param_groups[-1]
            if seam._factor != 1.0 and id(group) not in seam._scaled:
                _scale(group, seam._factor)
                seam._scaled.add(id(group))

        self._patches.replace(Optimizer, "add_param_group", add_param_group)
        self._pre_hook = register_optimizer_step_pre_hook(
            lambda _optimizer, _args, _kwargs: seam._before_step()
        )
        self._hook = register_optimizer_step_post_hook(
            lambda optimizer, _args, _kwargs: seam._after_step(optimizer)
        )

    def watch(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Call these around each step, until ``unwatch()``; also possible within a step."""
        self._watcher = before, after

    def unwatch(self) -> None:
        """Call them no more."""
        self._watcher = None

    def _before_step(self) -> None:
        self._begin()
        if self._watcher is not None:
            self._watcher[0]()

    def _after_step(self, optimizer: Optimizer) -> None:
        self._stepped(optimizer)
        if self._watcher is not None:
            self._watcher[1]()

    def _begin(self) -> None:
        """The program is about to make its first step."""
        if not self._has_begun:
            self._has_begun = True
            self._before_first()

    def stop_listening(self) -> None:
        """Count no more steps; learning rates are still scaled."""
        if self._pre_hook is not None:
            self._pre_hook.remove()
            self._pre_hook = None
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
