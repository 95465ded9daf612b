"""The seam of loss scaling: torch's GradScaler for a program that has none and trains in fp16.

Each outermost backward pass begins with scaled losses, and when it ends the gradients are unscaled:
whatever reads a gradient after the pass reads the true one. Gradients that overflowed become 0, the
steps that would use them are skipped, and the scale is halved. It changes only at the first pass
after a step, so that FSDP never adds gradients of two scales.

GradScaler unscales an optimizer once a step. Here it gets the optimizer's parameters anew in each
pass, and what they have gathered is scaled before the pass adds to it. So a step may have several
passes, optimizers may share parameters or take turns, and micro-batches need no special case.

Refused in a sentence, because the program would read scaled gradients: hooks on gradients,
gradients of tensors that no optimizer trains, ``create_graph=True``, and closures of optimizers
that are not torch's. Not covered: ``torch.autograd.grad``, whose results are unscaled, so that
small ones underflow; what only passes after the first ``PASSES_LOOKED_AT`` do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import distributed
from torch.amp import GradScaler
from torch.optim import LBFGS, Optimizer
from torch.utils._pytree import tree_leaves

from autotune.inside.hubs.backward import BackwardListener, BackwardPass
from autotune.inside.hubs.step import Go, StepListener
from autotune.inside.ranks.dtensor import is_sharded
from autotune.inside.seams.rank_checks import parameters_of
from autotune.knobs.precision import NEEDS_SCALING

PASSES_LOOKED_AT = 12  # three steps of four passes; each node of a graph takes about a microsecond


class ScalingSeam(BackwardListener, StepListener):
    """Scales the losses of a program that has no GradScaler.

    Attributes:
        passes: Number of outermost backward passes that the program has made.
        against: Why its losses cannot be scaled, such as "the program differentiates gradients
            again (create_graph=True)"; empty as long as nothing was seen.
        is_needed: Whether the config trains in fp16.
    """

    def __init__(self, optimizers: Callable[[], Iterable[Optimizer]]) -> None:
        self._optimizers = optimizers
        self.passes, self.against = 0, ""
        self.set_enabled(enabled=False)

    def set_enabled(self, *, enabled: bool) -> None:
        """Turn scaling on, with GradScaler's first scale, or off; call it between two steps."""
        self.is_needed = enabled
        self._scaler: GradScaler | None = None
        self._scaled: list[_Part] = []  # by the pass that runs
        self._unscaled: list[_Part] = []  # since the last update: the scaler knows them by their id
        self._overflowed: set[int] = set()  # ids of parameters whose next step is skipped
        self._has_stepped = False

    @property
    def scale(self) -> float:
        """The present scale; 1 without scaling, and before the first pass."""
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())

    def before_backward(self, call: BackwardPass) -> None:
        """Begin the pass with scaled losses.

        Raises:
            RuntimeError: if the program would read scaled gradients.
        """
        self.passes += 1
        creates_graph = bool(call.options.get("create_graph"))
        if not self.against and (creates_graph or self.passes <= PASSES_LOOKED_AT):
            self.against = _against(call, parameters_of(self._optimizers()))
        parts = self._parts() if self.is_needed else []
        if not parts:  # before there is an optimizer, nothing is trained
            return
        self._refuse()
        scaler = self._scaler = self._scaler or _scaler_for(parts[0].parameters[0].device)
        if self._has_stepped and any(part.overflows(scaler) for part in self._unscaled):
            scaler.update()
            self._unscaled, self._has_stepped = [], False
        call.tensors = scaler.scale(call.losses)
        for part in parts:
            if gradients := part.gradients:
                torch._foreach_mul_(gradients, scaler.get_scale())
        self._scaled = parts

    def backward_ended(self, call: BackwardPass) -> None:  # noqa: ARG002
        """Unscale all gradients."""
        parts, self._scaled = self._scaled, []
        self._unscaled += parts
        if self._scaler is None:
            return
        for part in parts:
            self._scaler.unscale_(part)  # type: ignore[arg-type]
        for part in parts:
            if any(map(bool, part.overflows(self._scaler))):
                self._overflowed.update(map(id, part.parameters))
                for gradient in part.gradients:  # perhaps of other ranks alone
                    gradient.zero_()

    def around_step(self, go: Go, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Skip a step whose gradients overflowed.

        torch's optimizers compute the closure's loss before they change anything, so the closure
        is called here first, as Lightning does it. LBFGS and others may call it several times.

        Raises:
            RuntimeError: if the optimizer gets a closure and is not one of torch's.
        """
        loss, closure = None, kwargs.get("closure", args[0] if args else None)
        is_torchs = type(optimizer).__module__.startswith("torch.optim.")
        if closure is not None and (not is_torchs or isinstance(optimizer, LBFGS)):
            self.against = f"{type(optimizer).__name__} may call the program's closure repeatedly"
        if not self.is_needed:
            return go(optimizer, *args, **kwargs)
        if closure is not None:
            self._refuse()
            with torch.enable_grad():  # the program computes loss and gradients in there
                loss = closure()
            args, kwargs = (lambda: loss,), {}
        self._has_stepped = True
        trained = {id(p) for p in parameters_of([optimizer])} if self._overflowed else set()
        if trained.isdisjoint(self._overflowed):
            return go(optimizer, *args, **kwargs)
        self._overflowed -= trained
        return loss

    def _refuse(self) -> None:
        if self.against:
            raise RuntimeError(f"{NEEDS_SCALING} {self.against}")

    def _parts(self) -> list[_Part]:
        parts: list[_Part] = []
        seen: set[int] = set()
        for optimizer in self._optimizers():
            new = [p for p in parameters_of([optimizer]) if id(p) not in seen]
            seen.update(map(id, new))
            whole, shards = [p for p in new if not is_sharded(p)], [p for p in new if is_sharded(p)]
            parts += [_Part(own) for own in (whole, shards) if own]
        return parts


class _Part:
    """Parameters in the form in which GradScaler reads an optimizer."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self.param_groups = [{"params": parameters}]

    @property
    def gradients(self) -> list[torch.Tensor]:
        """The present gradients, of sparse ones the values, to be changed in place."""
        own = (p.grad.detach() for p in self.parameters if p.grad is not None)
        return [grad._values() if grad.is_sparse else grad for grad in own]  # noqa: SLF001

    def overflows(self, scaler: GradScaler) -> list[torch.Tensor]:
        """What the scaler found by unscaling: per device 1 if a gradient is not finite, else 0."""
        return [*scaler._found_inf_per_device(self).values()]  # type: ignore[arg-type] # noqa: SLF001


class _Scaler(GradScaler):
    """torch's, with the methods that other seams replace to follow the program's GradScaler."""

    scale, unscale_, update = GradScaler.scale, GradScaler.unscale_, GradScaler.update


def _scaler_for(device: torch.device) -> GradScaler:
    if not distributed.is_available() or not distributed.is_initialized():
        return _Scaler(device.type)
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    return ShardedGradScaler(device.type)


def _against(call: BackwardPass, trained: list[torch.nn.Parameter]) -> str:
    """Return why a pass cannot be scaled, or an empty string; empty without trained parameters."""
    if call.options.get("create_graph"):
        return "the program differentiates gradients again (create_graph=True)"
    if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in trained):  # noqa: SLF001
        return "the program has a hook on the gradient of a parameter"
    if not trained or any(map(is_sharded, trained)):  # the graph holds gathered parameters instead
        return ""
    known = {id(parameter) for parameter in trained}
    leaves = [own for own in tree_leaves(call.options.get("inputs")) if own is not None]
    for node in () if leaves else graph_of(call.losses):
        if node.name() == "BackwardHookFunctionBackward":
            return "the program has a backward hook on a module"
        if not node.next_functions and hasattr(node, "variable"):  # an AccumulateGrad node
            leaves.append(node.variable)
    shapes = [tuple(leaf.shape) for leaf in leaves if id(leaf) not in known]
    return (
        f"no optimizer trains a tensor of shape {shapes[0]} that gets a gradient" if shapes else ""
    )


def graph_of(tensors: Iterable[torch.Tensor]) -> Iterator[Any]:
    """Yield the nodes of the graph by which tensors were computed."""
    todo: list[Any] = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen = set(todo)
    while todo:
        node = todo.pop()
        yield node
        new = {before for before, _ in node.next_functions if before is not None} - seen
        seen |= new
        todo += new
