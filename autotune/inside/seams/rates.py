"""The seam at learning rates: scales an optimizer's rates to the batch size while it steps.

A rate is multiplied when ``step()`` begins and restored when it ends. The program may set its rates
by hand, schedule, load or save them, add groups or share them among optimizers: the factor is
applied exactly once, and never gets into a checkpoint. The program's own step hooks see the
program's rates, too.

Covered: several optimizers, each by the rule of its family; optimizers that step others, or share
their groups; rates that are tensors; steps that fail; a loader that was not tuned and feeds the
optimizer with another batch size; a program that already scales its rates with the batch size.

Not covered: program code that applies a learning rate without an optimizer.
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
from autotune.inside.hubs.step import StepListener
from autotune.program.lr import LrRule, lr_factor, optimizer_factor
from autotune.program.profile import OptimizerFacts

# Relative tolerance when rates are compared: programs compute them in different ways, and the
# result may be rounded.
LIKE = 1e-3


@dataclass(frozen=True)
class _Scaled:
    """A parameter group whose rate is multiplied while its optimizer steps.

    Attributes:
        group: The optimizer's parameter group.
        own: The program's rate.
        used: The multiplied rate, which the group has during the step.
        factor: What the rate was multiplied by.
    """

    group: dict[str, Any]
    own: Any
    used: Any
    factor: float

    def put_back(self) -> None:
        """Restore the program's rate.

        If the step itself has changed the rate, the change is kept and only the factor is taken
        out.
        """
        if self.group["lr"] is self.used:
            self.group["lr"] = self.own
        else:
            self.group["lr"] /= self.factor


@dataclass(frozen=True)
class _Step:
    """A step that is running, or that has failed without its post-hooks being called.

    Attributes:
        optimizer: The optimizer that steps.
        scaled: The groups whose rates are multiplied during this step.
        thread: Identifier of the thread on which it runs.
        frame: The frame of torch that calls the optimizer's ``step``. It is on the stack as long as
            the step is running, so a failed step is recognized by its absence.
    """

    optimizer: Optimizer
    scaled: list[_Scaled]
    thread: int
    frame: FrameType


class RatesSeam(StepListener):
    """Multiplies the learning rates of optimizers while they step.

    ``SeamSet`` makes it, and ``Steering`` sets the rule and the batch on the main thread. The
    hub of steps calls ``before_step()``, and the loader seam calls ``fed()`` on the thread that
    reads batches.

    Args:
        say: Called with each sentence that the user should read, once for each.

    Attributes:
        sums: Whether the loss sums over samples, so that gradients grow with the batch.
        growth: Ratio of the samples per step (now / in the program as written).
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._rule = LrRule.NONE
        self._own: dict[str, int] = {}
        self._batch: dict[str, int] = {}
        self.sums = False
        self.growth = 1.0
        # Cached by optimizer class and ``sums``, until the batch changes.
        self._factors: dict[tuple[type[Optimizer], bool], float] = {}
        self._known: tuple[OptimizerFacts, ...] = ()
        self._feeds_target = True
        self._fed: set[bool] = set()  # the ``by_target`` of all batches since the last step
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
        """Set how rates follow the batch size.

        Args:
            rule: The rule for all optimizers, or AUTO for that of each optimizer's family.
            batch: The knobs whose product is the program's own global batch, with their values.
            known: The optimizers with their rates at the program's own batch, in the order of their
                first steps. Without them, programs that scale their rates are not recognized.
        """
        self._rule, self._own, self._known = rule, dict(batch), known
        self._batch = {**batch, **self._batch}
        self._batch_changed()

    def follow(self, **batch: int) -> None:
        """Set knobs whose product is the present global batch; the others keep their values.

        Has no effect before ``set_rule()``.
        """
        if self._own:
            self._batch |= batch
            self._batch_changed()

    def hold(self, *, held: bool) -> None:
        """Leave rates as the program has them while *held*.

        Used while a probe learns whether gradients grow with the batch size, and while configs of
        several batch sizes take turns.
        """
        self._is_held = held

    def fed(self, *, by_target: bool) -> None:
        """Note that a batch was read with gradients enabled; may be called on any thread.

        A step uses the tuned loader's batch if that loader handed out one since the last step, even
        if other loaders did, too: a program may only look at their batches without disabling
        gradients. If no loader did, the step counts like the one before.

        Args:
            by_target: Whether the batch comes from the loader that was tuned.
        """
        self._fed.add(by_target)

    def misses_target(self) -> None:
        """Note that the tuned loader was not built, so steps use the program's own batches.

        Rates are not scaled until the tuned loader hands out a batch.
        """
        self._feeds_target = False

    def _batch_changed(self) -> None:
        self.growth = math.prod(self._batch.values()) / math.prod(self._own.values())
        self._factors.clear()

    @property
    def is_needed(self) -> bool:
        """Whether some rate may differ from the program's own."""
        return self.growth != 1.0 and self._rule is not LrRule.NONE

    def factor(self, optimizer: Optimizer) -> float:
        """Return the factor for an optimizer's rates in its present step.

        It is 1 while rates are held, if the tuned loader does not feed the step, and for an
        optimizer whose rate the program scales.
        """
        if self._is_held or not self._feeds_target or optimizer in self._follows_itself:
            return 1.0
        kind = type(optimizer), self.sums
        if kind not in self._factors:
            self._factors[kind] = optimizer_factor(
                self._rule, families_of(optimizer), self.growth, sums=self.sums
            )
        return self._factors[kind]

    def before_step(self, optimizer: Optimizer) -> None:
        """Prepare for an optimizer's step, which may run within another optimizer's step.

        Called by torch's global pre-hook. The rates are multiplied later, by hooks of the optimizer
        that this call registers, so that the program's earlier hooks still see its rates.
        """
        if self._steps:
            self._end_failed_steps()
        if not self._steps:
            self._look_at_batches()
        if optimizer not in self._met:
            self._meet(optimizer)
        hooked: Any = optimizer._optimizer_step_pre_hooks  # noqa: SLF001
        handles: Any = self._hooks.get(optimizer, ())
        if handles and handles[0].id not in hooked:  # the program has made its hooks anew
            for handle in self._hooks.pop(optimizer):
                handle.remove()
            handles = ()
        if not handles and self.is_needed:
            before = optimizer.register_step_pre_hook(lambda own, *_: self._begin(own))
            after = optimizer.register_step_post_hook(lambda own, *_: self._end(own))
            hooks: Any = optimizer._optimizer_step_post_hooks  # noqa: SLF001
            hooks.move_to_end(after.id, last=False)  # restore rates before the program's post-hooks
            self._hooks[optimizer] = [before, after]
        elif handles:  # the program may have added a hook since
            hooked.move_to_end(handles[0].id)

    def remove(self) -> None:
        """Remove the hooks of all optimizers, so that no rate is scaled any more."""
        for handles in self._hooks.values():
            for handle in handles:
                handle.remove()
        self._hooks.clear()

    def _begin(self, optimizer: Optimizer) -> None:
        """Multiply the rates of an optimizer's groups; torch calls its ``step`` next.

        A group that an outer step has already scaled is left out.
        """
        taken = {id(scaled.group) for step in self._steps for scaled in step.scaled}
        factor = self.factor(optimizer)
        groups = [g for g in optimizer.param_groups if id(g) not in taken and _has_rate(g)]
        scaled = [_scale(g, factor) for g in groups] if factor != 1.0 else []
        if scaled or self._steps:
            torchs = sys._getframe(2)  # noqa: SLF001
            self._steps.append(_Step(optimizer, scaled, get_ident(), torchs))

    def _end(self, optimizer: Optimizer) -> None:
        """Restore rates after an optimizer's step, also those of failed steps within it."""
        own = [number for number, step in enumerate(self._steps) if step.optimizer is optimizer]
        if own:
            for step in reversed(self._steps[own[-1] :]):
                if step.thread == get_ident():
                    self._leave(step)

    def _end_failed_steps(self) -> None:
        """Restore the rates of steps that raised an error which the program has caught.

        torch calls no post-hook for such a step.
        """
        running = {id(frame) for frame in stack(sys._getframe(1))}  # noqa: SLF001
        for step in reversed(self._steps):
            if step.thread == get_ident() and id(step.frame) not in running:
                self._leave(step)

    def _leave(self, step: _Step) -> None:
        self._steps = [own for own in self._steps if own is not step]
        for scaled in reversed(step.scaled):
            scaled.put_back()

    def _look_at_batches(self) -> None:
        """Determine whether the next step uses the tuned loader's batch.

        The user is told the first time that another loader takes over.
        """
        fed, self._fed = self._fed, set()
        if not fed:
            return
        was_target, self._feeds_target = self._feeds_target, True in fed
        if was_target and not self._feeds_target and self.is_needed:
            self._tell(
                "a loader that was not tuned now feeds the optimizer, with its own batch size, so "
                "the learning rate is not scaled meanwhile"
            )

    def _meet(self, optimizer: Optimizer) -> None:
        """Check at an optimizer's first step whether the program scales its rate with the batch.

        The rate is compared with that of the same optimizer at the program's own batch. A program
        that builds its optimizers anew, as for each fold, is assumed to keep their order.
        """
        number = self._count_met
        self._count_met += 1
        self._met.add(optimizer)
        facts = self._known[number % len(self._known)] if self._known else None
        if facts is None or facts.name != type(optimizer).__name__:
            return
        pairs = (facts.lrs, rates_of(optimizer)), (facts.initial_lrs, initial_rates_of(optimizer))
        for before, now in pairs:  # a warm-up may begin at 0, and a schedule may do the scaling
            if how := _how_scaled(before, now, self.growth):
                self._follows_itself.add(optimizer)
                self._tell(
                    f"the program already scales the learning rate with the batch size ({how}): "
                    f"that of {facts.name} begins at {now[0]:g} instead of {before[0]:g}, so "
                    "autotune does not scale it"
                )
                return

    def _tell(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._say(sentence)


def families_of(optimizer: Optimizer) -> tuple[str, ...]:
    """Return the names of an optimizer's class and of its base classes that are optimizers.

    The own class comes first; the scaling rules are looked up in this order.
    """
    return tuple(c.__name__ for c in type(optimizer).__mro__ if issubclass(c, Optimizer))


def rates_of(optimizer: Optimizer) -> tuple[float, ...]:
    """Return the learning rates of an optimizer's groups; groups without a rate are left out."""
    return tuple(float(g["lr"]) for g in optimizer.param_groups if _has_rate(g))


def initial_rates_of(optimizer: Optimizer) -> tuple[float, ...]:
    """Return the same before any of torch's schedulers changed them.

    A scheduler keeps them as ``initial_lr``.
    """
    groups = [g for g in optimizer.param_groups if _has_rate(g)]
    return tuple(float(g.get("initial_lr", g["lr"])) for g in groups)


def _has_rate(group: dict[str, Any]) -> bool:
    return isinstance(group.get("lr"), (int, float, torch.Tensor))


def _scale(group: dict[str, Any], factor: float) -> _Scaled:
    own = group["lr"]
    group["lr"] = used = own * factor  # not in place: groups may share one tensor as their rate
    return _Scaled(group, own, used, factor)


def _how_scaled(before: tuple[float, ...], now: tuple[float, ...], growth: float) -> str:
    """Return the rule by which the program already scales its rates; empty if it does not.

    Args:
        before: The rates at the program's own batch.
        now: The present rates.
        growth: Ratio of the samples per step (now / before).
    """
    if growth == 1.0 or not before or len(before) != len(now) or not all(before):
        return ""
    for rule in (LrRule.LINEAR, LrRule.SQRT):
        wanted = lr_factor(rule, growth)
        if all(math.isclose(n, b * wanted, rel_tol=LIKE) for b, n in zip(before, now, strict=True)):
            return str(rule)
    return ""
