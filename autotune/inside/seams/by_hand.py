"""The seam of programs without an optimizer of torch's: a step is seen by its backward passes.

Such a program computes gradients, by ``backward()`` or ``torch.autograd.grad``, and writes its
weights itself, or has an object do it that is no torch Optimizer. A step has ended where weights
have other values than after the last pass. Values are compared, and only in the first steps:
``p.data.add_()`` moves no version counter, and later on as many passes make a step as made the
third. In programs that own an optimizer only the weights of models are compared, when it has not
stepped after some passes, and not while it steps: what accumulates gradients or moves weights to
and fro before its first step, an attack that changes its inputs or a closure of LBFGS is no step.

Not covered: weights that are replaced by new tensors instead of being written, as ``torch.func``
has it: ``unseen()`` tells of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from autotune.inside.code.frames import Place, own_place
from autotune.inside.seams.base import Patches, Seam, outermost

STEPS_COMPARED = 3
MAX_WEIGHTS = 16  # are looked at, spread over the model
MAX_VALUES = 8  # of each, where its gradient is largest: there a step changes it most
IDLE_PASSES = 16  # from then on an optimizer that has made no step is taken for an idle one
MAX_NODES = 10_000  # of a loss's graph are searched for weights outside of modules
TRANSFORMS = ("grad", "grad_and_value", "vjp")
MEND = (
    "a step is seen where a torch.optim optimizer steps, or where weights are changed in place "
    "after their gradients were computed"
)


class ByHandSeam(Seam):
    """Tells of steps that no torch Optimizer makes.

    Args:
        optimizers: Gives the living optimizers.
        models: Gives the outermost modules that were called.
        stepped: Told of each step.
        is_stepping: Tells whether an optimizer is about to make a step, or makes one.

    Attributes:
        place: Where the program computed gradients last, in the first steps.
        device: Type of the device on which the weights lie.
    """

    def __init__(
        self,
        optimizers: Callable[[], Sequence[Optimizer]],
        models: Callable[[], Iterable[nn.Module]],
        stepped: Callable[[], None],
        is_stepping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_stepping = is_stepping
        self._optimizers = optimizers
        self._models = models
        self._stepped = stepped
        self._patches, self._noting = Patches(), Patches()
        self._backward: Callable[..., Any] | None = None
        self._rests = False
        self._watched: list[_Watched] = []
        self._lead: list[torch.Tensor] = []
        self._steps = 0
        self._passes = self._all_passes = 0
        self._passes_per_step: int | None = None
        self._thread = 0
        self._transform = self._idle = ""
        self.place: Place | None = None
        self.device = "cpu"

    def install(self) -> None:
        """Begin to watch backward passes."""
        backward, grad = torch.autograd.backward, torch.autograd.grad
        seam = self

        def after_backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            inputs = kwargs.get("inputs")
            seam._pass(backward, (tensors, *args), kwargs, tensors if inputs is None else inputs)

        def after_grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return grad(outputs, inputs, *args, **kwargs)
            return seam._pass(grad, (outputs, inputs, *args), kwargs, inputs)

        self._backward = outermost(after_backward, backward)
        self._patches.replace(torch.autograd, "backward", self._backward)
        self._patches.replace(torch.autograd, "grad", after_grad)

    def note_transforms(self) -> None:
        """Note also, until the first step, whether gradients are taken by torch.func."""
        for name in TRANSFORMS:
            self._note(name, getattr(torch.func, name))

    def look(self) -> None:
        """Tell of a step, if one has ended: the program comes back to its loader or its model.

        Another thread than the one that trains comes back to nothing.
        """
        if self._rests or not self._passes or get_ident() != self._thread or self._is_stepping():
            return
        if self._passes_per_step is None:
            self._compare()
        elif self._passes >= self._passes_per_step:
            self._passes = 0
            self._stepped()

    def rest(self) -> None:
        """An optimizer steps: passes mean nothing any more."""
        self._rests = True
        self._watched.clear()
        self._lead.clear()
        self._noting.undo()
        if torch.autograd.backward is self._backward:  # nobody leans on it: it costs no longer
            self._patches.undo()

    def remove(self) -> None:
        """Put PyTorch back as it was."""
        self._noting.undo()
        self._patches.undo()

    def unseen(self) -> str:
        """Return what was seen of training in a program that has made no step, empty for none."""
        if self._steps or self._rests:
            return ""
        if self._transform:
            return f"it takes gradients by {self._transform}, and no step was seen: {MEND}"
        if not self._all_passes:
            return ""
        did = "no weights changed in place after them"
        if self._idle:
            did = f"its {self._idle} made no step"
        return f"it computed gradients {self._all_passes} times ({self.place}), and {did}: {MEND}"

    def _pass(
        self, original: Callable[..., Any], args: Any, kwargs: dict[str, Any], reaches: Any
    ) -> Any:
        if self._rests:
            return original(*args, **kwargs)
        self.look()
        found = original(*args, **kwargs)
        self._passed(_tensors(reaches))
        return found

    def _note(self, name: str, original: Callable[..., Any]) -> None:
        def transform(*args: Any, **kwargs: Any) -> Any:
            if not self._transform and not torch.compiler.is_compiling():
                self._transform = f"torch.func.{name} ({own_place()})"
            return original(*args, **kwargs)

        self._noting.replace(torch.func, name, transform)

    def _passed(self, tensors: Sequence[torch.Tensor]) -> None:
        """Count a pass; in the first steps keep values of the weights that it reached."""
        self._thread = get_ident()
        self._passes += 1
        self._all_passes += 1
        if self._passes_per_step is not None:
            return
        self.place = own_place() or self.place
        optimizers = self._optimizers()
        self._idle = " and ".join(dict.fromkeys(type(own).__name__ for own in optimizers))
        if optimizers and self._all_passes < IDLE_PASSES:
            return
        known = {id(watched.leaf) for watched in self._watched}
        weights = self._weights(tensors)
        for leaf in weights[:: -(-len(weights) // MAX_WEIGHTS) or 1]:
            if id(leaf) not in known:
                self._watched.append(_Watched(leaf))

    def _weights(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Parameters of the models that have gradients; leaves that a loss depends on otherwise."""
        leaves = list(_leaves(tensors))
        reached = {id(leaf) for leaf in leaves}
        own = [p for model in self._models() for p in model.parameters() if p.requires_grad]
        its: list[torch.Tensor] = [p for p in own if p.grad is not None or id(p) in reached]
        return its or ([] if self._idle else leaves)

    def _compare(self) -> None:
        changed = [watched.leaf for watched in self._watched if watched.has_changed()]
        if not changed:
            return
        self._watched = [w for w in self._watched if not _has(changed, w.leaf)]
        self._lead = self._lead or changed
        if not any(_has(self._lead, leaf) for leaf in changed):
            return  # a second model's step
        self.device = changed[0].device.type
        passes, self._passes = self._passes, 0
        self._steps += 1
        if self._steps == STEPS_COMPARED:
            self._passes_per_step = passes
            self._watched.clear()
            self._lead.clear()
        self._noting.undo()
        self._stepped()


class _Watched:
    """A weight, and some of its values after a pass."""

    def __init__(self, leaf: torch.Tensor) -> None:
        self.leaf = leaf
        self._at = _most_moved(leaf)
        self._values = self._read()

    def has_changed(self) -> bool:
        return not torch.equal(self._read().to(self._values.device), self._values)

    def _read(self) -> torch.Tensor:
        flat = self.leaf.detach().reshape(-1)
        return flat[self._at[self._at < flat.numel()].to(flat.device)]


def _most_moved(leaf: torch.Tensor) -> torch.Tensor:
    """Return the places, on the CPU, at which a leaf's gradient is largest."""
    count = min(MAX_VALUES, leaf.numel())
    gradient = leaf.grad
    if gradient is None:
        return torch.linspace(0, max(0, leaf.numel() - 1), count).long().cpu()
    if gradient.is_sparse:
        rows = gradient.detach().coalesce().indices()[0, :MAX_VALUES].cpu()
        return rows * (leaf.numel() // max(1, leaf.shape[0]))
    return gradient.detach().abs().reshape(-1).topk(count).indices.cpu()


def _has(tensors: Iterable[torch.Tensor], wanted: torch.Tensor) -> bool:
    return any(tensor is wanted for tensor in tensors)


def _tensors(value: Any) -> list[torch.Tensor]:
    found = [value] if isinstance(value, torch.Tensor) else value
    return [tensor for tensor in found if isinstance(tensor, torch.Tensor)]


def _leaves(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the leaves on which tensors depend, as far as their graph is not too large."""
    tensors = list(tensors)
    yield from (t for t in tensors if t.is_leaf and t.requires_grad)
    todo: list[Any] = [tensor.grad_fn for tensor in tensors]
    seen: set[Any] = set()
    while todo and len(seen) < MAX_NODES:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        todo += [following for following, _ in node.next_functions]
