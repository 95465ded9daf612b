"""The hub of optimizer steps: torch's global step hooks, and ``step`` of optimizer classes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from autotune.inside.hubs.hub import Hub

Go = Callable[..., Any]


class StepListener:
    """Acts on optimizer steps; a method that a class does not override costs nothing.

    The methods run on the thread that steps.
    """

    def before_step(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""

    def after_step(self, optimizer: Optimizer) -> None:
        """An optimizer has made a step; called for the innermost listener first."""

    def around_step(self, go: Go, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Make a step by calling *go* with the optimizer and the arguments, or hold it back.

        No other listener is told of a step that is held back. A class that overrides this has
        the hub patch the ``step`` of each optimizer's class.
        """
        return go(optimizer, *args, **kwargs)


class StepHub(Hub[StepListener]):
    """Calls its listeners at the steps of all optimizers.

    torch's global hooks serve those that only follow steps. What may hold a step back surrounds
    ``step`` itself: ``see()`` must be told of each optimizer, when it is built, which is before a
    scheduler can wrap its ``step``.
    """

    listens = StepListener
    inner_first = ("after_step", "around_step")

    def __init__(self) -> None:
        self._pre_hook: RemovableHandle | None = None
        self._post_hook: RemovableHandle | None = None
        self._classes: set[type[Optimizer]] = set()
        super().__init__()

    def see(self, optimizer: Optimizer) -> None:
        """Surround the steps of an optimizer's class, if a listener may hold them back."""
        cls = type(optimizer)
        if not self.told["around_step"] or cls in self._classes:
            return
        self._classes.add(cls)
        original, hub = cls.step, self

        def step(target: Optimizer, *args: Any, **kwargs: Any) -> Any:
            go: Go = original
            for around in hub.told["around_step"]:
                go = partial(around, go)
            return go(target, *args, **kwargs)

        # torch wraps the ``step`` of each class that lacks this mark with its own step hooks. They
        # are in the original already; around ours they would also run for steps that are held back.
        vars(step)["hooked"] = True
        self._patches.replace(cls, "step", step)

    def leave(self, listener: StepListener) -> None:
        """Stop calling this listener; it may leave while it is told that a step was made.

        torch goes through its hooks at that moment, so ours stay until ``remove()``.
        """
        self._joined = [own for own in self._joined if own is not listener]
        self._choose()

    def remove(self) -> None:
        """Put PyTorch back as it was, whoever listens."""
        super().remove()
        self._classes.clear()
        for hook in (self._pre_hook, self._post_hook):
            if hook is not None:
                hook.remove()
        self._pre_hook = self._post_hook = None

    def _patch(self) -> None:
        if self.told["before_step"] and self._pre_hook is None:
            self._pre_hook = register_optimizer_step_pre_hook(self._begins)
        if self.told["after_step"] and self._post_hook is None:
            self._post_hook = register_optimizer_step_post_hook(self._has_ended)

    def _begins(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        for tell in self.told["before_step"]:
            tell(optimizer)

    def _has_ended(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        for tell in self.told["after_step"]:
            tell(optimizer)
