"""The seam of loss scaling: fp16 gradients are scaled up before they vanish, and back at once.

The outermost backward pass begins from a scale and brings all gradients back when it ends, so
whoever reads a gradient reads the true one: clipping of any kind, logs, optimizers that compute the
loss again within their step, and hooks, within the pass. Where gradients overflowed, they are set
to 0, the next step of their optimizer is left out and the scale is halved. Several ranks leave
overflowed gradients as they are: that tells the others when gradients are averaged.

Covered: several passes before a step, passes within passes, leaves that no optimizer knows, sparse
and complex gradients, retained gradients of other tensors, steps made within the pass, gradients
that are differentiated again. Not covered: ``torch.autograd.grad``, whose results are true but
not scaled, so that small ones vanish; hooks on nodes of the graph, which see scaled gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch import distributed
from torch.optim import LBFGS, Optimizer

from autotune.inside.seams.base import Patches, Seam
from autotune.inside.seams.gradient_hooks import GradientHooks
from autotune.inside.seams.scaled_pass import ScaledPass, begun, clear, leaves_of

# Those of torch.amp.GradScaler
FIRST_SCALE = 2.0**16
GROWTH_INTERVAL = 2000


class ScalingSeam(Seam):
    """Scales the gradients of a program that has no GradScaler of its own.

    Attributes:
        passes: Backward passes that the program has made without scaling.
    """

    def __init__(self) -> None:
        self.passes = 0
        self._scale: float | None = None
        self._clean_steps = 0
        self._has_stepped = self._has_overflowed = False
        self._optimizers: WeakSet[Optimizer] = WeakSet()
        self._overflowed: dict[int, torch.Tensor] = {}
        self._pass: ScaledPass | None = None
        self._hooks = GradientHooks(self)
        self._hooked: set[type[Optimizer]] = set()
        self._patches = Patches()

    @property
    def is_needed(self) -> bool:
        """Scaling was asked for."""
        return self._scale is not None

    @property
    def scale(self) -> float:
        """The present scale, 1 without scaling."""
        return 1.0 if self._scale is None else self._scale

    @property
    def scale_within(self) -> float:
        """By how much gradients are scaled at this moment: 1 where no pass is under way."""
        return 1.0 if self._pass is None else self._pass.scale

    def set_enabled(self, *, enabled: bool) -> None:
        """Scale from the next backward pass on, or stop doing so; between two steps."""
        if enabled != self.is_needed:
            self._scale = FIRST_SCALE if enabled else None
            self._clean_steps = 0
            self._has_stepped = self._has_overflowed = False
            self._overflowed.clear()

    def install(self) -> None:
        """Begin to act; optimizers are hooked when ``hook()`` learns of them."""
        self._scale_backward()
        self._hooks.install()

    def hook(self, optimizer: Optimizer) -> None:
        """Act at the steps of an optimizer."""
        self._optimizers.add(optimizer)
        cls = type(optimizer)
        if cls in self._hooked:
            return
        self._hooked.add(cls)
        original = cls.step
        seam = self

        def step(target: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if seam._scale is None:
                return original(target, *args, **kwargs)
            try:
                return seam._step(original, target, *args, **kwargs)
            finally:
                seam._settle(target)

        vars(step)["hooked"] = True  # torch's own hooks run inside ours
        self._patches.replace(cls, "step", step)

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        self._hooks.remove()
        self._patches.undo()
        self._hooked.clear()

    def _step(self, original: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Let an optimizer make its step unless its gradients overflowed.

        The optimizers of torch compute the loss before they change anything; others may have
        changed the weights by then, and go on with gradients of 0.
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
        """Tell whether gradients overflowed that the optimizer would use."""
        return bool(self._overflowed) and any(
            id(p) in self._overflowed for p in _parameters(optimizer) if p.grad is not None
        )

    def _settle(self, optimizer: Optimizer) -> None:
        """Its step is made, or left out."""
        self._has_stepped = True
        if self._overflowed:
            for parameter in _parameters(optimizer):
                self._overflowed.pop(id(parameter), None)

    def _scale_backward(self) -> None:
        original = torch.autograd.backward
        seam = self

        def backward(
            tensors: Any,
            grad_tensors: Any = None,
            retain_graph: bool | None = None,  # noqa: FBT001
            create_graph: bool = False,  # noqa: FBT001, FBT002
            grad_variables: Any = None,
            inputs: Any = None,
        ) -> None:
            rest = {
                "retain_graph": retain_graph,
                "create_graph": create_graph,
                "grad_variables": grad_variables,
                "inputs": inputs,
            }
            if seam._scale is None:
                seam.passes += 1
                original(tensors, grad_tensors, **rest)
                return
            roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            leaves = leaves_of(roots)
            if seam._pass is not None:  # activations are computed again, maybe on another thread
                seam._pass.take_in(leaves)
                original(tensors, grad_tensors, **rest)
                return
            named = inputs.values() if isinstance(inputs, Mapping) else inputs
            leaves += [named] if isinstance(named, torch.Tensor) else list(named or ())
            with seam._scaled_pass(leaves, keeps_graph=create_graph) as scale:
                original(roots, begun(roots, grad_tensors, scale), **rest)

        self._patches.replace(torch.autograd, "backward", backward)

    @contextmanager
    def _scaled_pass(self, leaves: Sequence[torch.Tensor], *, keeps_graph: bool) -> Iterator[float]:
        self._adjust()
        groups = [list(_parameters(optimizer)) for optimizer in self._optimizers]
        scaled = ScaledPass(self.scale, groups, keeps_graph=keeps_graph)
        scaled.take_in([*leaves, *self._hooks.retaining()])
        self._pass = scaled
        try:
            yield self.scale
        finally:
            self._pass = None
            self._note(scaled.end())

    @contextmanager
    def true_gradient(self, leaf: torch.Tensor) -> Iterator[None]:
        """Have the gradient of a leaf true for a moment within a pass."""
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
        """Gradients overflowed: let nobody use them."""
        if not overflowed:
            return
        self._has_overflowed = True
        self._overflowed |= {id(leaf): leaf for leaf in overflowed}
        if not _has_ranks():
            clear(overflowed)

    def _adjust(self) -> None:
        """Choose the scale of the pass that begins.

        Ranks have the same overflows at their steps only. The program may have cleared what
        overflowed, and make no step of it.
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
