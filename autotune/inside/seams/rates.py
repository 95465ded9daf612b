"""The seam at learning rates: while an optimizer steps, its rate follows the batch of that step.

A rate is multiplied when ``step()`` begins and is the program's own again when it ends. So whatever
the program does with its rates, sets them by hand, schedules them, loads or saves them, adds groups
or shares them among optimizers, the factor is on them once, and in no checkpoint.

Covered: several optimizers, each by the rule of its kind; optimizers that step others, or hold
their groups; rates that are tensors; a loader that feeds the optimizer with a batch of its own; a
program that follows the batch by itself. Not covered: code of the program's that applies a rate
itself, beside an optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer

from autotune.lr import LrRule, lr_factor, optimizer_factor
from autotune.profile import OptimizerFacts

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


class RatesSeam:
    """Multiplies the rates of optimizers while they step.

    Args:
        say: Told what the user should know of the rates.

    Attributes:
        sums: Gradients grow with the batch: the loss sums over samples.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._rule = LrRule.NONE
        self._own: dict[str, int] = {}
        self._batch: dict[str, int] = {}
        self.sums = False
        self._known: tuple[OptimizerFacts, ...] = ()
        self._feeds_target = True
        self._is_held = False
        self._within: list[list[_Scaled]] = []
        self._numbers: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._follows_itself: WeakKeyDictionary[Optimizer, bool] = WeakKeyDictionary()
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

    def follow(self, **batch: int) -> None:
        """Say what the global batch is now the product of, by the names of the knobs."""
        if self._own:
            self._batch |= batch

    def hold(self, *, held: bool) -> None:
        """Leave rates as the program has them, until it is known how gradients take the batch."""
        self._is_held = held

    def fed(self, *, by_target: bool) -> None:
        """Note whose batch the next step is made of: that of the loader that was tuned or not."""
        self._abandon_steps()
        self._feeds_target = by_target
        if not by_target and self.growth != 1.0:
            self._tell(
                "a loader that was not tuned feeds the optimizer now, by its own batch: the "
                "learning rate is the program's own meanwhile"
            )

    @property
    def growth(self) -> float:
        """Samples of a step of the tuned loader, times the program's own."""
        return math.prod(self._batch.values()) / math.prod(self._own.values())

    @property
    def is_needed(self) -> bool:
        """Some rate may be another than the program's own."""
        return self.growth != 1.0 and self._rule is not LrRule.NONE

    def factor(self, optimizer: Optimizer) -> float:
        """Return the factor on the rates of an optimizer in its present step."""
        if self._is_held or not self._feeds_target or self._follows_itself.get(optimizer, False):
            return 1.0
        families = families_of(optimizer)
        return optimizer_factor(self._rule, families, self.growth, sums=self.sums)

    def begin_step(self, optimizer: Optimizer) -> None:
        """An optimizer begins its step, maybe within that of another."""
        if not self._within and not self.is_needed:
            return
        if optimizer not in self._numbers:
            self._meet(optimizer)
        taken = {id(scaled.group) for level in self._within for scaled in level}
        factor = self.factor(optimizer)
        groups = [g for g in optimizer.param_groups if id(g) not in taken and _has_rate(g)]
        self._within.append([_scale(g, factor) for g in groups] if factor != 1.0 else [])

    def end_step(self) -> None:
        """It has made its step."""
        if self._within:
            for scaled in reversed(self._within.pop()):
                scaled.put_back()

    def _abandon_steps(self) -> None:
        """End what did not end: a step had an error, which the program has caught."""
        while self._within:
            self.end_step()

    def _meet(self, optimizer: Optimizer) -> None:
        """An optimizer makes its first step: does the program scale its rate with the batch?"""
        number = len(self._numbers)
        self._numbers[optimizer] = number
        facts = self._known[number] if number < len(self._known) else None
        if facts is None or facts.name != type(optimizer).__name__:
            return
        now = rates_of(optimizer)
        if how := _how_scaled(facts.lrs, now, self.growth):
            self._follows_itself[optimizer] = True
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
