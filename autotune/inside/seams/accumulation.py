"""The seam of gradient accumulation: k micro-batches of the program's loop become one step.

A group is the k micro-batches of one step. The program's loop runs as written for each of them, but
until the last one of a group ``step`` of optimizers, schedulers and gradient scalers, gradient
clipping and weight averages (``AveragedModel``) do nothing, and ``zero_grad`` does nothing while
gradients accumulate. Each backward pass is weighted by the micro-batch's share of the group's
samples. So the accumulated gradient is that of the mean loss over the group, also in the last,
smaller group of an epoch.

Covered: a program that leaves out a batch whose loss is not finite, either by ``zero_grad`` between
backward and step or by making no step (the whole group is left out); a loop that is left in the
middle of a group (the gradients of that group are dropped); data without a length (groups then
continue across epochs).

Not covered: a loss that sums over samples; gradients that the program clears or clips with its own
code; batch statistics such as BatchNorm's, which remain those of micro-batches. The comparison
before a recommendation shows these. A program with several optimizers is not offered the knob.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn import utils
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from autotune.inside.hubs.backward import BackwardListener, BackwardPass
from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.hubs.step import Go, StepListener
from autotune.inside.micro_batches import Groups
from autotune.inside.seams.rank_checks import parameters_of


class AccumulationSeam(Seam, BackwardListener, StepListener):
    """Groups micro-batches of the training loader, and holds back steps within a group.

    The replaced functions run where the program calls them, on its training thread.

    Attributes:
        groups: The loader seam tells it of each micro-batch and of the end of each pass.
        on_held: Called with an optimizer after each of its steps that is held back.
        clears_to_none: Whether the program's calls of ``zero_grad`` set gradients to None. False if
            it asked for zeros at least once; None if it has never called it.
        stops_schedules: Whether the steps of all schedulers are skipped, also outside of groups. A
            trial's training loop does not end but a schedule does: OneCycleLR raises after its last
            step, and a linear decay goes below zero.
    """

    def __init__(self, optimizers: Callable[[], Iterable[Optimizer]]) -> None:
        self.on_held: Callable[[Optimizer], None] = lambda _: None
        self.groups = Groups(self._drop)
        self.clears_to_none: bool | None = None
        self.stops_schedules = False
        self._optimizers = optimizers
        self._patches = Patches()

    @property
    def steps(self) -> int:
        """Number of micro-batches in a group; 1 turns accumulation off."""
        return self.groups.steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self.groups.regroup(steps)

    @property
    def holds(self) -> bool:
        """Whether steps of the present micro-batch are held back.

        They are unless it is the last one of a group that was not left out. Reading this while
        gradients are enabled counts as the beginning of training on that micro-batch.
        """
        if self.groups.steps == 1:
            return False
        # A program may also read the training data to evaluate; such batches belong to no group.
        if torch.is_grad_enabled():
            self.groups.take()
        return not self.groups.is_last or self.groups.is_left_out

    @property
    def is_needed(self) -> bool:
        """Whether several micro-batches make a step."""
        return self.steps > 1

    def install(self) -> None:
        """Replace the functions that clear, clip, scale, average weights and follow schedules.

        Classes of schedulers that are defined later inherit or call a wrapped ``step``; one that
        overrides it without calling a base class is not held.
        """
        for cleared in (Optimizer, nn.Module):
            self._patches.wrap(cleared, "zero_grad", self._clear)
        for owner in (utils, clip_grad):  # programs import them from either module
            self._patches.wrap(owner, "clip_grad_value_", self._hold)
            self._patches.wrap(owner, "clip_grad_norm_", self._clip)
        self._patches.wrap(utils, "clip_grads_with_norm_", self._hold)
        for name in ("update", "unscale_"):
            self._patches.wrap(GradScaler, name, self._hold)
        self._patches.wrap(AveragedModel, "update_parameters", self._hold)
        self._patches.wrap(GradScaler, "step", self._step_scaled)
        for scheduler in _with_subclasses(LRScheduler):
            if "step" in vars(scheduler):
                self._patches.wrap(scheduler, "step", self._follow_schedule)

    def around_step(self, go: Go, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Hold back the step of an optimizer within a group."""
        if self.steps == 1:
            return go(optimizer, *args, **kwargs)
        if not self._holds_step(optimizer):
            result = go(optimizer, *args, **kwargs)
            self.groups.stepped(optimizer, is_real=True)
            return result
        closure = kwargs.get("closure", args[0] if args else None)
        result = None
        if closure is not None:
            # The program computes its loss and gradients in the closure, so it must run even
            # if the step is held back.
            with torch.enable_grad():
                result = closure()
        self.groups.stepped(optimizer, is_real=False)
        self.on_held(optimizer)
        return result

    def before_backward(self, call: BackwardPass) -> None:
        """Weight the pass by the micro-batch's share of the group."""
        if self.groups.steps > 1:
            self.groups.take()
            self.groups.has_gradients = True
            call.gradients = weighed(call.losses, call.gradients, self.groups.share)

    def _holds_step(self, optimizer: Optimizer) -> bool:
        """Tell whether this step of an optimizer is held back.

        A second step for one micro-batch shows that the program now trains on other data, which
        does not come from the loader: steps are made at once until the next micro-batch.
        """
        is_held = self.holds
        if is_held and id(optimizer) in self.groups.stepped_by:
            self.groups.release()
            is_held = False
        return is_held

    @staticmethod
    def _trains(target: Optimizer | nn.Module, optimizers: Iterable[Optimizer]) -> bool:
        """Tell whether some of the optimizers' parameters are among the target's."""
        its = target.parameters() if isinstance(target, nn.Module) else parameters_of([target])
        trained = {id(parameter) for parameter in parameters_of(optimizers)}
        return not trained.isdisjoint(map(id, its))

    def _drop(self) -> None:
        for parameter in parameters_of(self._optimizers()):
            if self.clears_to_none is not False:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.detach_().zero_()

    def _hold(self, original: Go, *args: Any, **kwargs: Any) -> Any:
        return None if self.holds else original(*args, **kwargs)

    def _follow_schedule(self, original: Go, *args: Any, **kwargs: Any) -> None:
        if not (self.stops_schedules or self.holds):
            original(*args, **kwargs)

    def _clear(self, original: Go, target: Any, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002
        """Carry out the program's ``zero_grad()``, or leave it out.

        Between a backward pass and its step, it discards gradients that may hold NaN. It is then
        carried out, and the group is left out. Otherwise it is carried out only where no gradients
        accumulate. What counts is whose parameters it clears: the target may wrap an optimizer, or
        be a module that nobody trains.
        """
        self.clears_to_none = set_to_none and self.clears_to_none is not False
        clears, groups = True, self.groups
        if groups.steps > 1:
            groups.take()
            if not groups.has_gradients:
                waits = self._trains(target, groups.waiting.values())
                clears = groups.is_left_out or not waits
            elif self._trains(target, self._optimizers()):
                groups.leave_out()
        if clears:
            original(target, set_to_none)

    def _step_scaled(
        self, original: Go, scaler: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any
    ) -> Any:
        """Hold back ``GradScaler.step`` within groups.

        A scaler skips the optimizer's step if gradients are not finite. The group still ends then,
        so it is the scaler's call that is counted here.
        """
        if self.steps == 1:
            return original(scaler, optimizer, *args, **kwargs)
        is_held = self._holds_step(optimizer)
        result = None if is_held else original(scaler, optimizer, *args, **kwargs)
        self.groups.stepped(optimizer, is_real=not is_held)
        if is_held:
            self.on_held(optimizer)
        return result

    def _clip(
        self, original: Go, parameters: Any, max_norm: float, *args: Any, **kwargs: Any
    ) -> Any:
        """Clip nothing while steps are held back, but still return the norm."""
        limit = math.inf if self.holds else max_norm
        return original(parameters, limit, *args, **kwargs)


def _with_subclasses(cls: type[LRScheduler]) -> Iterator[type[LRScheduler]]:
    yield cls
    for sub in cls.__subclasses__():
        yield from _with_subclasses(sub)


def weighed(tensors: Sequence[Any], grads: Any, share: float) -> Any:
    """Return the ``grad_tensors`` of a backward pass, multiplied by its share.

    A missing gradient stands for ones, so it becomes a tensor filled with the share.
    """
    if grads is None or isinstance(grads, torch.Tensor):
        grads = (grads,) * len(tensors)
    return tuple(
        torch.full_like(tensor, share) if grad is None else grad * share
        for tensor, grad in zip(tensors, grads, strict=True)
    )
