"""The seam at learning rates: scales an optimizer's rates to the batch size while it steps.

A rate is multiplied while an optimizer computes its step. The program may set its rates by hand or
in hooks of the step, schedule, load or save them, add groups or share them among optimizers: the
factor is applied exactly once, and never gets into a checkpoint. Not covered: a rate that is
applied without an optimizer.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from autotune.inside.hubs.step import Go, StepListener
from autotune.program.lr import LrRule, lr_factor, optimizer_factor
from autotune.program.profile import OptimizerFacts

# Relative tolerance when rates are compared: programs compute them in different ways, and the
# result may be rounded.
LIKE = 1e-3


class RatesSeam(StepListener):
    """Multiplies the learning rates of optimizers while they step.

    ``Steering`` sets the rule and the batch on the main thread, and the loader seam calls ``fed()``
    on the thread that reads batches.

    Attributes:
        growth: Ratio of the samples per step (now / in the program as written).
        feeds_target: Whether steps use the batches of the loader that was tuned. A step counts like
            the one before if no batch was read since.
        is_held: Whether rates are left as the program has them, while configs of several batch
            sizes take turns.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = cache(say)
        self._rule = LrRule.NONE
        self._written: dict[str, int] = {}
        self._batch: dict[str, int] = {}
        self._known: deque[OptimizerFacts] = deque()
        self.growth = 1.0
        self.feeds_target = True
        self._fed: set[bool] = set()  # the ``by_target`` of all batches since the last step
        self.is_held = False
        self._scaled: list[_Multiplied] = []  # of the steps that run now
        self._follows_itself: WeakKeyDictionary[Optimizer, bool] = WeakKeyDictionary()

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
        self._rule, self._written = rule, dict(batch)
        self._known = self._known or deque(known)
        self._batch = {**batch, **self._batch}
        self._batch_changed()

    def follow(self, **batch: int) -> None:
        """Set knobs whose product is the present global batch; the others keep their values.

        Has no effect before ``set_rule()``.
        """
        if self._written:
            self._batch |= batch
            self._batch_changed()

    def fed(self, *, by_target: bool) -> None:
        """Note that a batch was read with gradients enabled; may be called on any thread.

        A step uses the tuned loader's batch if that loader handed out one since the last step, even
        if other loaders did, too: a program may only look at their batches.
        """
        self._fed.add(by_target)

    def _batch_changed(self) -> None:
        self.growth = math.prod(self._batch.values()) / math.prod(self._written.values())

    @property
    def is_needed(self) -> bool:
        """Whether some rate may differ from the program's own."""
        return self.growth != 1.0 and self._rule is not LrRule.NONE

    def factor(self, optimizer: Optimizer) -> float:
        """Return the factor for an optimizer's rates in its present step.

        It is 1 while rates are held, if the tuned loader does not feed the step, and for an
        optimizer whose rate the program scales.
        """
        is_left = self.is_held or not self.feeds_target
        if not self.is_needed or is_left or self._follows_itself.get(optimizer):
            return 1.0
        families = families_of(optimizer)
        return optimizer_factor(self._rule, families, self.growth)

    def around_step(self, go: Go, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Make the step with multiplied rates.

        The program's hooks run before the rates are multiplied and after they are restored, so
        they may read and set them. An optimizer may step another one that shares its groups. If the
        step itself changes a rate, the change is kept and only the factor is taken out.
        """
        if not self._scaled:
            self._look_at_batches()
        if optimizer not in self._follows_itself:
            self._follows_itself[optimizer] = self._scales_itself(optimizer)
        is_begun = any(step.optimizer is optimizer for step in self._scaled)  # super().step()
        if is_begun or (factor := self.factor(optimizer)) == 1.0:
            return go(optimizer, *args, **kwargs)
        taken = {id(group) for step in self._scaled for group, *_ in step.scaled}
        step = _Multiplied(optimizer, factor, taken)
        self._scaled.append(step)
        try:
            with step:
                return go(optimizer, *args, **kwargs)
        finally:
            self._scaled.remove(step)  # on another thread a step may have begun since

    def _look_at_batches(self) -> None:
        """Determine whether the next step uses the tuned loader's batch.

        The user is told the first time that another loader takes over.
        """
        fed, self._fed = self._fed, set()
        if not fed:
            return
        was_target, self.feeds_target = self.feeds_target, True in fed
        if was_target and not self.feeds_target and self.is_needed:
            self._say(
                "a loader that was not tuned now feeds the optimizer, with its own batch size, so "
                "the learning rate is not scaled meanwhile"
            )

    def _scales_itself(self, optimizer: Optimizer) -> bool:
        """Tell at an optimizer's first step whether the program scales its rate with the batch.

        The rate is compared with that of the same optimizer at the program's own batch. A program
        that builds its optimizers anew, as for each fold, is assumed to keep their order.
        """
        if not self._known:
            return False
        facts = self._known[0]
        self._known.rotate(-1)
        if facts.name != type(optimizer).__name__:
            return False
        pairs = (facts.lrs, rates_of(optimizer)), (facts.initial_lrs, initial_rates_of(optimizer))
        for before, now in pairs:  # a warm-up may begin at 0, and a schedule may do the scaling
            if how := _how_scaled(before, now, self.growth):
                self._say(
                    f"the program already scales the learning rate with the batch size ({how}): "
                    f"that of {facts.name} begins at {now[0]:g} instead of {before[0]:g}, so "
                    "autotune does not scale it"
                )
                return True
        return False


class _Multiplied:
    """The rates of an optimizer in one step: multiplied last before it, and restored first after.

    torch runs the hooks of a step once for each class whose ``step`` takes part by ``super()``. The
    outermost pair counts.

    Args:
        optimizer: Its groups are multiplied, but for those in *taken*.
        factor: By which.
        taken: Ids of groups that an optimizer has multiplied of which this step is a part.
    """

    def __init__(self, optimizer: Optimizer, factor: float, taken: set[int]) -> None:
        self.optimizer, self._factor, self._taken = optimizer, factor, taken
        self.scaled: list[tuple[dict[str, Any], Any, Any]] = []
        self._handles: list[RemovableHandle] = []
        self._depth = 0

    def __enter__(self) -> None:
        if not hasattr(self.optimizer, "_optimizer_step_pre_hooks"):
            self._multiply()  # it wraps an optimizer, and torch has not set it up
            return
        before = self.optimizer.register_step_pre_hook(self._begins)
        after = self.optimizer.register_step_post_hook(self._ends)
        self._handles = [before, after]
        hooks: Any = self.optimizer._optimizer_step_post_hooks  # noqa: SLF001
        hooks.move_to_end(after.id, last=False)

    def __exit__(self, *_: object) -> None:
        self._restore()
        for handle in self._handles:
            handle.remove()

    def _begins(self, *_: object) -> None:
        self._depth += 1
        if self._depth == 1:
            self._multiply()

    def _ends(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._restore()

    def _multiply(self) -> None:
        for group in self.optimizer.param_groups:
            if id(group) not in self._taken and _has_rate(group):
                rate = group["lr"]  # not in place: groups may share one tensor as their rate
                group["lr"] = rate * self._factor
                self.scaled.append((group, rate, group["lr"]))

    def _restore(self) -> None:
        while self.scaled:
            group, rate, used = self.scaled.pop()
            group["lr"] = rate if group["lr"] is used else group["lr"] / self._factor


def families_of(optimizer: Optimizer) -> tuple[str, ...]:
    """Return the names of an optimizer's class and of its base classes that are optimizers.

    The optimizer's class comes first; the scaling rules are looked up in this order.
    """
    return tuple(c.__name__ for c in type(optimizer).__mro__ if issubclass(c, Optimizer))


def rates_of(optimizer: Optimizer) -> tuple[float, ...]:
    """Return the learning rates of an optimizer's groups; groups without a rate are left out."""
    return tuple(float(g["lr"]) for g in optimizer.param_groups if _has_rate(g))


def initial_rates_of(optimizer: Optimizer) -> tuple[float, ...]:
    """Return the rates before any of torch's schedulers changed them.

    A scheduler keeps them as ``initial_lr``.
    """
    groups = [g for g in optimizer.param_groups if _has_rate(g)]
    return tuple(float(g.get("initial_lr", g["lr"])) for g in groups)


def _has_rate(group: dict[str, Any]) -> bool:
    return isinstance(group.get("lr"), (int, float, torch.Tensor))


def _how_scaled(before: tuple[float, ...], now: tuple[float, ...], growth: float) -> str:
    if growth == 1.0 or not before or len(before) != len(now) or not all(before):
        return ""
    for rule in (LrRule.LINEAR, LrRule.SQRT):
        wanted = lr_factor(rule, growth)
        if all(math.isclose(n, b * wanted, rel_tol=LIKE) for b, n in zip(before, now, strict=True)):
            return str(rule)
    return ""
