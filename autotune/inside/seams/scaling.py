"""The seam of loss scaling: keeps small fp16 gradients from underflowing during a backward pass.

A GradScaler needs calls in the program's code; this seam needs none. The outermost backward pass
begins with a scaled loss and unscales all gradients when it ends. So everything that reads a
gradient reads the true one: clipping of any kind, logs, optimizers that compute the loss again
within their step, and hooks within the pass. If gradients overflow, they are set to 0, the
optimizer's next step is skipped, and the scale is halved. Several ranks leave overflowed gradients
as they are, because averaging them tells the other ranks of the overflow.

Covered: several passes before a step, passes within passes, leaves that no optimizer knows, sparse
and complex gradients, retained gradients of other tensors, steps made within the pass, gradients
that are differentiated again.

Not covered: ``torch.autograd.grad``, whose results are true but unscaled, so small ones underflow;
hooks on nodes of the graph, which see scaled gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed
from torch.optim import LBFGS, Optimizer

from autotune.inside.hubs.backward import BackwardListener, BackwardPass
from autotune.inside.hubs.step import Go, StepListener
from autotune.inside.seams.gradient_hooks import GradientHooks
from autotune.inside.seams.scaled_pass import ScaledPass, begun, clear, leaves_of

# The defaults of torch.amp.GradScaler.
FIRST_SCALE = 2.0**16
GROWTH_INTERVAL = 2000


class ScalingSeam(BackwardListener, StepListener):
    """Scales the loss of a program that has no GradScaler.

    ``SeamSet`` has it join if the config trains in fp16, or if the program is measured.

    Args:
        optimizers: Returns the living optimizers.

    Attributes:
        passes: Number of backward passes that the program has made without scaling.
    """

    def __init__(self, optimizers: Callable[[], Iterable[Optimizer]]) -> None:
        self._optimizers = optimizers
        self.passes = 0
        self._scale: float | None = None
        self._clean_steps = 0
        self._has_stepped = self._has_overflowed = False
        self._overflowed: dict[int, torch.Tensor] = {}
        self._pass: ScaledPass | None = None
        self._hooks = GradientHooks(self)

    @property
    def is_needed(self) -> bool:
        """Whether scaling was requested."""
        return self._scale is not None

    @property
    def scale(self) -> float:
        """The present scale; 1 without scaling."""
        return 1.0 if self._scale is None else self._scale

    @property
    def scale_within(self) -> float:
        """The factor on gradients at this moment; 1 outside of a backward pass."""
        return 1.0 if self._pass is None else self._pass.scale

    def set_enabled(self, *, enabled: bool) -> None:
        """Turn scaling on or off from the next backward pass on.

        Call it between two steps. Turning it on begins with FIRST_SCALE.
        """
        if enabled != self.is_needed:
            self._scale = FIRST_SCALE if enabled else None
            self._clean_steps = 0
            self._has_stepped = self._has_overflowed = False
            self._overflowed.clear()

    def install(self) -> None:
        """Patch the hooks on gradients."""
        self._hooks.install()

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        self._hooks.remove()

    def around_step(self, go: Go, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Skip the step of an optimizer after an overflow."""
        if self._scale is None:
            return go(optimizer, *args, **kwargs)
        try:
            return self._step(go, optimizer, *args, **kwargs)
        finally:
            self._settle(optimizer)

    def _step(self, original: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Let an optimizer make its step unless its gradients overflowed.

        With a closure, torch's optimizers compute the loss before they change anything, so the
        closure is called here first and the step skipped if it overflows. Other optimizers (and
        LBFGS) may change weights before they call it. They make their step, with gradients of 0 in
        place of those that overflowed.
        """
        closure = kwargs.get("closure", args[0] if args else None)
        if closure is None:
            return None if self._lost(optimizer) else original(optimizer, *args, **kwargs)
        if not _computes_loss_first(optimizer):
            return original(optimizer, *args, **kwargs)
        with torch.enable_grad():  # the program computes loss and gradients in there
            loss = closure()
        return loss if self._lost(optimizer) else original(optimizer, lambda: loss)

    def _lost(self, optimizer: Optimizer) -> bool:
        """Tell whether any gradient that the optimizer would use has overflowed."""
        return bool(self._overflowed) and any(
            id(p) in self._overflowed for p in _parameters(optimizer) if p.grad is not None
        )

    def _settle(self, optimizer: Optimizer) -> None:
        """Forget an optimizer's overflows after its step was made or skipped."""
        self._has_stepped = True
        if self._overflowed:
            for parameter in _parameters(optimizer):
                self._overflowed.pop(id(parameter), None)

    def before_backward(self, call: BackwardPass) -> None:
        """Begin the pass with scaled gradients."""
        if self._scale is None:
            self.passes += 1
            return
        leaves = leaves_of(call.losses)
        inputs = call.options.get("inputs")
        named = inputs.values() if isinstance(inputs, Mapping) else inputs
        leaves += [named] if isinstance(named, torch.Tensor) else list(named or ())
        self._adjust()
        groups = [list(_parameters(optimizer)) for optimizer in self._optimizers()]
        keeps_graph = bool(call.options.get("create_graph"))
        scaled = ScaledPass(self.scale, groups, keeps_graph=keeps_graph)
        scaled.take_in([*leaves, *self._hooks.retaining()])
        self._pass = scaled
        call.gradients = begun(call.losses, call.gradients, self.scale)

    def within_backward(self, call: BackwardPass) -> None:
        """Take in what an inner pass reaches: its gradients carry the scale already."""
        if self._pass is not None:
            self._pass.take_in(leaves_of(call.losses))

    def backward_ended(self, call: BackwardPass) -> None:  # noqa: ARG002
        """Unscale all gradients."""
        if self._pass is not None:
            ended, self._pass = self._pass, None
            self._note(ended.end())

    @contextmanager
    def true_gradient(self, leaf: torch.Tensor) -> Iterator[None]:
        """Unscale a leaf's gradient within the context, so that a hook reads its true value.

        Outside of a backward pass gradients are true already, and nothing is done.
        """
        if self._pass is None:
            yield
            return
        if self._pass.bring_back(leaf):
            self._note([leaf])
        try:
            yield
        finally:
            self._pass.take_up(leaf)

    def _note(self, overflowed: Sequence[torch.Tensor]) -> None:
        """Record overflowed gradients and set them to 0, so that they do not reach the weights.

        With several ranks they keep their values, which tell the other ranks of the overflow when
        gradients are averaged.
        """
        if not overflowed:
            return
        self._has_overflowed = True
        self._overflowed |= {id(leaf): leaf for leaf in overflowed}
        if not _has_ranks():
            clear(overflowed)

    def _adjust(self) -> None:
        """Choose the scale of the pass that begins.

        It is halved after an overflow and doubled after GROWTH_INTERVAL steps without one, as by
        GradScaler. Ranks know the same overflows only after a step, so several ranks change the
        scale only then. Overflowed gradients that the program has cleared are forgotten.
        """
        cleared = [key for key, leaf in self._overflowed.items() if leaf.grad is None]
        for key in cleared:
            del self._overflowed[key]
        if self._has_overflowed and (self._has_stepped or not _has_ranks()):
            self._scale = self.scale / 2
            self._has_overflowed, self._clean_steps = False, 0
        elif self._has_stepped:
            self._clean_steps += 1
            if self._clean_steps == GROWTH_INTERVAL:
                self._scale, self._clean_steps = self.scale * 2, 0
        self._has_stepped = False


def _parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    return (p for group in optimizer.param_groups for p in group["params"])


def _computes_loss_first(optimizer: Optimizer) -> bool:
    is_torchs_own = type(optimizer).__module__.startswith("torch.optim.")
    return is_torchs_own and not isinstance(optimizer, LBFGS)


def _has_ranks() -> bool:
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )
