"""The seam at learning rates: while an optimizer steps, its rate follows the batch of that step.

A rate is multiplied when ``step()`` begins and is the program's own again when it ends. So whatever
the program does with its rates, sets them by hand, schedules them, loads or saves them, adds groups
or shares them among optimizers, the factor is on them once, and in no checkpoint. Hooks of the
program's that an optimizer calls before and after its step see the program's own rates too.

Covered: several optimizers, each by the rule of its kind; optimizers that step others, or hold
their groups; rates that are tensors; steps that fail; a loader that feeds the optimizer with a
batch of its own; a program that follows the batch by itself. Not covered: code of the program's
that applies a rate itself, beside an optimizer.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import get_ident
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from autotune.inside.code.frames import stack
from autotune.program.lr import LrRule, lr_factor, optimizer_factor
from autotune.program.profile import OptimizerFacts

LIKE = 1e-3  # rates are equal but for so much: programs compute them in their own ways


@dataclass(frozen=True)
class _Scaled:
    """A group whose rate is multiplied while its optimizer steps."""

    group: dict[str, Any]
    own: Any
    used: Any
    factor: float

    def put_back(self) -> None:
        """Give the group its own rate again; one that the step itself has changed stays changed."""
        if self.group["lr"] is self.used:
            self.group["lr"] = self.own
        else:
            self.group["lr"] /= self.factor


@dataclass(frozen=True)
class _Step:
    """A step that goes on.

    Attributes:
        frame: Of torch, which calls the optimizer's step; on the stack as long as that goes on.
    """

    optimizer: Optimizer
    scaled: list[_Scaled]
    thread: int
    frame: FrameType


class RatesSeam:
    """Multiplies the rates of optimizers while they step.

    Args:
        say: Told what the user should know of the rates.

    Attributes:
        sums: Gradients grow with the batch: the loss sums over samples.
        growth: Samples of a step of the tuned loader, times the program's own.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._rule = LrRule.NONE
        self._own: dict[str, int] = {}
        self._batch: dict[str, int] = {}
        self.sums = False
        self.growth = 1.0
        self._factors: dict[tuple[type[Optimizer], bool], float] = {}  # as they were worked out
        self._known: tuple[OptimizerFacts, ...] = ()
        self._feeds_target = True
        self._fed: set[bool] = set()  # since the last step
        self._is_held = False
        self._steps: list[_Step] = []
        self._met: WeakSet[Optimizer] = WeakSet()
        self._count_met = 0
        self._hooks: WeakKeyDictionary[Optimizer, list[RemovableHandle]] = WeakKeyDictionary()
        self._follows_itself: WeakSet[Optimizer] = WeakSet()
        self._said: set[str] = set()

    def set_rule(
        self,
        rule: LrRule,
        batch: Mapping[str, int],
        known: tuple[OptimizerFacts, ...] = (),
    ) -> None:
        """Say how rates follow the batch.

        Args:
            rule: For all optimizers, or AUTO.
            batch: What the program's own global batch is the product of, by knob.
            known: The optimizers with their rates at the program's own batch, in order of steps.
        """
        self._rule, self._own, self._known = rule, dict(batch), known
        self._batch = {**batch, **self._batch}
        self._batch_changed()

    def follow(self, **batch: int) -> None:
        """Say what the global batch is now the product of, by the names of the knobs."""
        if self._own:
            self._batch |= batch
            self._batch_changed()

    def hold(self, *, held: bool) -> None:
        """Leave rates as the program has them, until it is known how gradients take the batch."""
        self._is_held = held

    def fed(self, *, by_target: bool) -> None:
        """Note a batch, of the loader that was tuned or of another one; from any thread.

        A step is made of the tuned loader's batch if that handed one out since the last step, be
        it beside others: what is only looked at needs no gradients, and may have them all the same.
        Where no loader did, the step goes on with what the last one had.
        """
        self._fed.add(by_target)

    def misses_target(self) -> None:
        """The loader that was tuned is not there: steps have batches of the program's own."""
        self._feeds_target = False

    def _batch_changed(self) -> None:
        self.growth = math.prod(self._batch.values()) / math.prod(self._own.values())
        self._factors.clear()

    @property
    def is_needed(self) -> bool:
        """Some rate may be another than the program's own."""
        return self.growth != 1.0 and self._rule is not LrRule.NONE

    def factor(self, optimizer: Optimizer) -> float:
        """Return the factor on the rates of an optimizer in its present step."""
        if self._is_held or not self._feeds_target or optimizer in self._follows_itself:
            return 1.0
        kind = type(optimizer), self.sums
        if kind not in self._factors:
            self._factors[kind] = optimizer_factor(
                self._rule, families_of(optimizer), self.growth, sums=self.sums
            )
        return self._factors[kind]

    def before_step(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step, maybe within the step of another."""
        self._end_failed_steps()
        if not self._steps:
            self._look_at_batches()
        if optimizer not in self._met:
            self._meet(optimizer)
        if self.is_needed and optimizer not in self._hooks:
            before = optimizer.register_step_pre_hook(lambda own, *_: self._begin(own))
            after = optimizer.register_step_post_hook(lambda own, *_: self._end(own))
            hooks: Any = optimizer._optimizer_step_post_hooks  # noqa: SLF001
            hooks.move_to_end(after.id, last=False)  # the program's come later
            self._hooks[optimizer] = [before, after]

    def remove(self) -> None:
        """Scale no more."""
        for handles in self._hooks.values():
            for handle in handles:
                handle.remove()
        self._hooks.clear()

    def _begin(self, optimizer: Optimizer) -> None:
        """Torch calls an optimizer's step next."""
        taken = {id(scaled.group) for step in self._steps for scaled in step.scaled}
        factor = self.factor(optimizer)
        groups = [g for g in optimizer.param_groups if id(g) not in taken and _has_rate(g)]
        scaled = [_scale(g, factor) for g in groups] if factor != 1.0 else []
        if scaled or self._steps:
            torchs = sys._getframe(2)  # noqa: SLF001
            self._steps.append(_Step(optimizer, scaled, get_ident(), torchs))

    def _end(self, optimizer: Optimizer) -> None:
        """The optimizer has made its step; what began within it and did not end has failed."""
        own = [number for number, step in enumerate(self._steps) if step.optimizer is optimizer]
        if own:
            for step in reversed(self._steps[own[-1] :]):
                if step.thread == get_ident():
                    self._leave(step)

    def _end_failed_steps(self) -> None:
        """End what did not come to its end: it had an error, which the program has caught."""
        if not self._steps:
            return
        running = {id(frame) for frame in stack(sys._getframe(1))}  # noqa: SLF001
        for step in reversed(self._steps):
            if step.thread == get_ident() and id(step.frame) not in running:
                self._leave(step)

    def _leave(self, step: _Step) -> None:
        self._steps = [own for own in self._steps if own is not step]
        for scaled in reversed(step.scaled):
            scaled.put_back()

    def _look_at_batches(self) -> None:
        """Tell whose batch the next step is made of."""
        fed, self._fed = self._fed, set()
        if not fed:
            return
        was_target, self._feeds_target = self._feeds_target, True in fed
        if was_target and not self._feeds_target and self.is_needed:
            self._tell(
                "a loader that was not tuned feeds the optimizer now, by its own batch: the "
                "learning rate is the program's own meanwhile"
            )

    def _meet(self, optimizer: Optimizer) -> None:
        """An optimizer makes its first step: does the program scale its rate with the batch?

        One that builds its optimizers again, as for each fold, builds them in the same order.
        """
        number = self._count_met
        self._count_met += 1
        self._met.add(optimizer)
        facts = self._known[number % len(self._known)] if self._known else None
        if facts is None or facts.name != type(optimizer).__name__:
            return
        now = rates_of(optimizer)
        if how := _how_scaled(facts.lrs, now, self.growth):
            self._follows_itself.add(optimizer)
            self._tell(
                f"the program follows the batch by itself ({how}): the learning rate of "
                f"{facts.name} begins at {now[0]:g} where it began at {facts.lrs[0]:g}, and is "
                "left to it"
            )

    def _tell(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._say(sentence)


def families_of(optimizer: Optimizer) -> tuple[str, ...]:
    """Return the names of an optimizer's class and of the optimizers among its base classes."""
    return tuple(c.__name__ for c in type(optimizer).__mro__ if issubclass(c, Optimizer))


def rates_of(optimizer: Optimizer) -> tuple[float, ...]:
    """Return the learning rates of an optimizer's groups."""
    return tuple(float(g["lr"]) for g in optimizer.param_groups if _has_rate(g))


def _has_rate(group: dict[str, Any]) -> bool:
    return isinstance(group.get("lr"), (int, float, torch.Tensor))


def _scale(group: dict[str, Any], factor: float) -> _Scaled:
    own = group["lr"]
    group["lr"] = used = own * factor  # a new tensor, where it is one: groups may share it
    return _Scaled(group, own, used, factor)


def _how_scaled(before: tuple[float, ...], now: tuple[float, ...], growth: float) -> str:
    """By which rule rates follow the batch already, empty for none."""
    if growth == 1.0 or len(before) != len(now) or not all(before):
        return ""
    for rule in (LrRule.LINEAR, LrRule.SQRT):
        wanted = lr_factor(rule, growth)
        if all(math.isclose(n, b * wanted, rel_tol=LIKE) for b, n in zip(before, now, strict=True)):
            return str(rule)
    return ""
