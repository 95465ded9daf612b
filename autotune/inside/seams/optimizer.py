"""The seam at the optimizer: its steps are counted and its learning rate follows the batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from autotune.inside.seams.accumulation import AccumulationSeam
from autotune.inside.seams.base import Patches
from autotune.inside.seams.scaling import ScalingSeam
from autotune.lr import LrRule, lr_factor

# Where torch itself prefers lists, and where it has fused kernels (torch.optim, "foreach", "fused")
FOREACH_DEVICES = {"cuda", "xpu"}
RATES = ("lr", "initial_lr", "max_lr", "min_lr")  # where schedulers keep theirs in a group
FUSED_DEVICES = {"cpu", "cuda", "mps", "xpu"}


class OptimizerSeam:
    """Hooks every optimizer's step and scales learning rates.

    Rates are scaled where groups are added, so schedulers built afterwards follow. When the batch
    changes in a running program, the rates of the groups are scaled, and those of schedulers.
    """

    def __init__(
        self,
        accumulation: AccumulationSeam,
        scaling: ScalingSeam,
        before_first: Callable[[], None],
        stepped: Callable[[Optimizer], None],
        scaled_rates: Callable[[float], None],
        groups_changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._scaled_rates = scaled_rates
        self._groups_changed = groups_changed
        self._accumulation = accumulation
        self._scaling = scaling
        self._before_first = before_first
        self._stepped = stepped
        self._patches = Patches()
        self._hook: Any = None
        self._pre_hook: Any = None
        self._has_begun = False
        self._watcher: tuple[Callable[[], None], Callable[[], None]] | None = None
        self._optimizers: list[ref[Optimizer]] = []
        self._factor = 1.0
        self._batch: dict[str, int] = {}
        self._rule = LrRule.NONE
        self._own_batch: dict[str, int] = {}
        self._implementation: str | None = None
        self._to_none: bool | None = None
        self.own_to_none: bool | None = None

    @property
    def optimizers(self) -> list[Optimizer]:
        """The living optimizers that have parameter groups, as they were built."""
        return [optimizer for living in self._optimizers if (optimizer := living()) is not None]

    @property
    def lr_factor(self) -> float:
        """Factor on learning rates now."""
        return self._factor

    def set_rule(self, rule: LrRule, batch: Mapping[str, int]) -> None:
        """Say how rates follow the batch, and for which batch the program chose its own.

        Args:
            rule: How they follow.
            batch: What the program's own samples of a step are the product of, by knob.
        """
        self._rule, self._own_batch = rule, dict(batch)
        self._batch = {**batch, **self._batch}

    def follow(self, **batch: int) -> None:
        """Scale all learning rates, present and future, to the global batch.

        Args:
            batch: What it is the product of, by the names of the knobs.
        """
        if not self._own_batch:
            return
        self._batch |= batch
        own, whole = math.prod(self._own_batch.values()), math.prod(self._batch.values())
        factor = lr_factor(self._rule, whole / own)
        groups = {id(g): g for optimizer in self.optimizers for g in optimizer.param_groups}
        self._scaled_rates(factor / self._factor)
        for group in groups.values():  # optimizers that wrap another share its groups
            _scale(group, factor / self._factor)
        self._factor = factor

    def forget_batch(self) -> None:
        """Put all learning rates back to the program's own."""
        self.follow(**self._own_batch)

    def use_implementation(self, name: str) -> None:
        """Have all optimizers, present and future, walk their parameters that way."""
        self._implementation = name
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                _use_implementation(optimizer, group, name)

    def set_zero_grad_to_none(self, *, enabled: bool) -> None:
        """Overrule what the program passes to ``zero_grad``."""
        self._to_none = enabled

    def install(self, *, watches: bool) -> None:
        """Begin to listen; *watches* tells that what the program asks for is to be known."""
        accumulates = watches or self._accumulation.steps > 1
        self._follow_groups(accumulates=accumulates, scales=watches or self._scaling.is_needed)
        if accumulates or self._to_none is not None:
            self._follow_zero_grad(Optimizer)
            self._follow_zero_grad(nn.Module)
        self._pre_hook = register_optimizer_step_pre_hook(
            lambda _optimizer, _args, _kwargs: self._before_step()
        )
        self._hook = register_optimizer_step_post_hook(
            lambda optimizer, _args, _kwargs: self._after_step(optimizer)
        )

    def _follow_groups(self, *, accumulates: bool, scales: bool) -> None:
        original = Optimizer.add_param_group
        seam = self

        def add_param_group(optimizer: Optimizer, param_group: dict[str, Any]) -> None:
            original(optimizer, param_group)
            if not any(optimizer is own for own in seam.optimizers):
                seam._optimizers.append(ref(optimizer))
            seam._groups_changed()
            if scales:
                seam._scaling.hook(optimizer)
            if accumulates:
                seam._accumulation.hook(optimizer)
            group = optimizer.param_groups[-1]
            if seam._implementation is not None:
                _use_implementation(optimizer, group, seam._implementation)
            if seam._factor != 1.0 and not seam._is_shared(group, optimizer):
                _scale(group, seam._factor)

        self._patches.replace(Optimizer, "add_param_group", add_param_group)

    def _is_shared(self, group: dict[str, Any], optimizer: Optimizer) -> bool:
        """Tell whether the group is another optimizer's too, which has seen to its rate."""
        others = (other for other in self.optimizers if other is not optimizer)
        return any(own is group for other in others for own in other.param_groups)

    def _follow_zero_grad(self, owner: type[Optimizer] | type[nn.Module]) -> None:
        original = owner.zero_grad
        seam = self

        def zero_grad(target: Any, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002
            seam.own_to_none = set_to_none
            if seam._accumulation.gathers:
                return
            original(target, set_to_none if seam._to_none is None else seam._to_none)

        self._patches.replace(owner, "zero_grad", zero_grad)

    def watch(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Call these around each step, until ``unwatch()``; also possible within a step."""
        self._watcher = before, after

    def unwatch(self) -> None:
        """Call them no more."""
        self._watcher = None

    def _before_step(self) -> None:
        self.begin()
        if self._watcher is not None:
            self._watcher[0]()

    def _after_step(self, optimizer: Optimizer) -> None:
        self._stepped(optimizer)
        if self._watcher is not None:
            self._watcher[1]()

    def begin(self) -> None:
        """The program is about to make its first step, or has made it without an optimizer."""
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


def implementation_of(optimizer: Optimizer) -> str:
    """Return how an optimizer walks its parameters now, as torch decides it."""
    group = optimizer.param_groups[0]
    if group.get("fused"):
        return "fused"
    foreach = group.get("foreach")
    if foreach is None and "foreach" in group:
        foreach = not group.get("differentiable") and _device_of(group) in FOREACH_DEVICES
    return "foreach" if foreach else "for-loop"


def implementations_of(optimizer: Optimizer) -> tuple[str, ...]:
    """Return the ways that an optimizer has for the device and dtype of its parameters."""
    group = optimizer.param_groups[0]
    if group.get("differentiable") or group.get("capturable"):
        return (implementation_of(optimizer),)
    floats = all(p.is_floating_point() for g in optimizer.param_groups for p in g["params"])
    has_fused = "fused" in group and floats and _device_of(group) in FUSED_DEVICES
    has = {"for-loop": True, "foreach": "foreach" in group, "fused": has_fused}
    return tuple(name for name, there in has.items() if there)


def _device_of(group: dict[str, Any]) -> str:
    return str(group["params"][0].device.type)


def _use_implementation(optimizer: Optimizer, group: dict[str, Any], name: str) -> None:
    """Set the group's flags and move what the implementation wants elsewhere: its step counts."""
    if "foreach" in group:
        group["foreach"] = name == "foreach"
    if "fused" in group:
        group["fused"] = name == "fused"
        # What the constructor sets for fused: torch checks the parameters, and a GradScaler hands
        # its scale to the kernel only if this tells that the kernel takes it.
        vars(optimizer).update(
            _need_device_dtype_check_for_fused=name == "fused",
            _step_supports_amp_scaling=name == "fused",
        )
    for parameter in group["params"]:
        state = optimizer.state.get(parameter, {})
        step = state.get("step")
        if isinstance(step, torch.Tensor):
            state["step"] = step.to(parameter.device if name == "fused" else "cpu")


def _scale(group: dict[str, Any], factor: float) -> None:
    for key in RATES:
        rate = group.get(key)
        if isinstance(rate, torch.Tensor):
            group[key] = rate * factor  # a new tensor: groups may share one
        elif rate is not None:
            group[key] = rate * factor
