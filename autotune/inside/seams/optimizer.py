"""The seam at the optimizer: knows the optimizers and sets how a step goes through the parameters.

``foreach`` and ``fused`` are set on the parameter groups, because the optimizer was built by the
program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch.optim import Optimizer

from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.hubs.step import StepListener
from autotune.inside.seams.rates import families_of, initial_rates_of, rates_of
from autotune.program.profile import OptimizerFacts

# Device types on which torch chooses foreach by default, and those that have fused kernels (see
# "foreach" and "fused" in the documentation of torch.optim).
FOREACH_DEVICES = {"cuda", "xpu"}
FUSED_DEVICES = {"cpu", "cuda", "mps", "xpu"}
Call = Callable[..., Any]


class OptimizerSeam(Seam, StepListener):
    """Follows every optimizer in the process, and reports its steps.

    Args:
        before_first: Called before the program's first step.
        stepped: Called with the optimizer after each step.
        built: Called with an optimizer that was built or got a parameter group.

    Attributes:
        is_stepping: Whether an optimizer's ``step()`` is running.
    """

    def __init__(
        self,
        before_first: Callable[[], None],
        stepped: Callable[[Optimizer], None],
        built: Callable[[Optimizer], None],
    ) -> None:
        self._built = built
        self._before_first = before_first
        self._stepped = stepped
        self._patches = Patches()
        self._has_begun = False
        self.is_stepping = False
        self._optimizers: list[ref[Optimizer]] = []
        self._implementation: str | None = None
        self._own_flags: WeakKeyDictionary[Optimizer, list[dict[str, Any]]] = WeakKeyDictionary()

    @property
    def optimizers(self) -> list[Optimizer]:
        """The living optimizers that have parameter groups, in the order in which they were built.

        They are held by weak references: a program may build new ones for each fold.
        """
        return [optimizer for living in self._optimizers if (optimizer := living()) is not None]

    def use_implementation(self, name: str) -> None:
        """Set the implementation of all optimizers, also of those built later."""
        self._implementation = name
        for optimizer in self.optimizers:
            self._have_implementation(optimizer)

    def _have_implementation(self, optimizer: Optimizer) -> None:
        if self._implementation is None:
            return
        own = self._own_flags.setdefault(optimizer, [])
        own += [_flags_of(group) for group in optimizer.param_groups[len(own) :]]
        for group in optimizer.param_groups:
            _use_implementation(optimizer, group, self._implementation)

    def install(self, *, watches: bool) -> None:
        """Follow the building of optimizers."""
        self._patches.wrap(Optimizer, "add_param_group", self._add)
        if watches or self._implementation is not None:
            self._patches.wrap(Optimizer, "load_state_dict", self._load)
            self._patches.wrap(Optimizer, "state_dict", self._save)

    def _add(self, original: Call, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        self.follow(optimizer)

    def follow(self, optimizer: Optimizer) -> None:
        """Follow an optimizer that was built or got a parameter group, now or before autotune."""
        if not any(optimizer is own for own in self.optimizers):
            self._optimizers.append(ref(optimizer))
        self._built(optimizer)
        self._have_implementation(optimizer)

    def _load(self, original: Call, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        """Set the requested flags again, as a loaded state brings its own."""
        original(optimizer, *args, **kwargs)
        if self._implementation is not None:
            self._own_flags[optimizer] = [_flags_of(g) for g in optimizer.param_groups]
        self._have_implementation(optimizer)

    def _save(self, original: Call, optimizer: Optimizer) -> dict[str, Any]:
        """Return a state with the program's flags, so that autotune's get into no checkpoint."""
        state: dict[str, Any] = original(optimizer)
        for group, own in zip(
            state["param_groups"], self._own_flags.get(optimizer, []), strict=False
        ):
            group.update(own)
        return state

    def before_step(self, optimizer: Optimizer) -> None:  # noqa: ARG002
        """Note that a step begins, and before the first one that training begins."""
        self.is_stepping = True
        if not self._has_begun:
            self.begin()

    def after_step(self, optimizer: Optimizer) -> None:
        """Report a step."""
        self.is_stepping = False
        self._stepped(optimizer)

    def begin(self) -> None:
        """Call ``before_first`` once, when training begins."""
        if not self._has_begun:
            self._has_begun = True
            self._before_first()


def optimizer_facts(optimizer: Optimizer) -> OptimizerFacts:
    """Return what an optimizer is, with its learning rates of this moment."""
    return OptimizerFacts(
        type(optimizer).__name__,
        families_of(optimizer),
        rates_of(optimizer),
        implementation_of(optimizer),
        implementations_of(optimizer),
        _has_own_step(optimizer),
        initial_rates_of(optimizer),
    )


def _has_own_step(optimizer: Optimizer) -> bool:
    """Return whether a class from outside torch defines the optimizer's ``step``.

    Wrappers that autotune has put around a class's step are skipped.
    """
    for cls in type(optimizer).__mro__:
        step = vars(cls).get("step")
        if step is not None and not step.__module__.startswith("autotune."):
            return not cls.__module__.startswith("torch.optim")
    return True


def implementation_of(optimizer: Optimizer) -> str:
    """Return the implementation that an optimizer uses: ``for-loop``, ``foreach`` or ``fused``.

    If the program left ``foreach`` unset, this is torch's default for the device of the first
    parameter. Only the first group is read.
    """
    group = optimizer.param_groups[0]
    if group.get("fused"):
        return "fused"
    foreach = group.get("foreach")
    if foreach is None and "foreach" in group:
        foreach = not group.get("differentiable") and device_of(optimizer) in FOREACH_DEVICES
    return "foreach" if foreach else "for-loop"


def implementations_of(optimizer: Optimizer) -> tuple[str, ...]:
    """Return the implementations that an optimizer offers for its parameters' device and dtype.

    An optimizer that is differentiable or capturable keeps the one that it has.
    """
    group = optimizer.param_groups[0]
    if group.get("differentiable") or group.get("capturable"):
        return (implementation_of(optimizer),)
    floats = all(p.is_floating_point() for g in optimizer.param_groups for p in g["params"])
    has_fused = "fused" in group and floats and device_of(optimizer) in FUSED_DEVICES
    has = {"for-loop": True, "foreach": "foreach" in group, "fused": has_fused}
    return tuple(name for name, there in has.items() if there)


def _flags_of(group: dict[str, Any]) -> dict[str, Any]:
    return {name: group[name] for name in ("foreach", "fused") if name in group}


def device_of(optimizer: Optimizer) -> str:
    """Return the type of the first parameter's device; the first groups may have no parameters."""
    return next(str(p.device.type) for g in optimizer.param_groups for p in g["params"])


def _use_implementation(optimizer: Optimizer, group: dict[str, Any], name: str) -> None:
    """Set a group's flags and move its step counts to the device that the implementation expects.

    Fused kernels read step counts on the parameters' device; the others expect them on the CPU.
    """
    if "foreach" in group:
        group["foreach"] = name == "foreach"
    if "fused" in group:
        group["fused"] = name == "fused"
        # The constructor sets these two for fused optimizers. The first has torch check the
        # parameters; the second tells a GradScaler that the kernel takes its scale.
        vars(optimizer).update(
            _need_device_dtype_check_for_fused=name == "fused",
            _step_supports_amp_scaling=name == "fused",
        )
    for parameter in group["params"]:
        state = optimizer.state.get(parameter, {})
        step = state.get("step")
        if isinstance(step, torch.Tensor):
            state["step"] = step.to(parameter.device if name == "fused" else "cpu")
