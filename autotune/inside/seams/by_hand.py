"""The seam of programs that train without a torch optimizer: it infers steps from backward passes.

Such a program computes gradients, by ``backward()`` or ``torch.autograd.grad``, and then writes its
weights itself, or leaves that to an object that is not a torch ``Optimizer``. A step has ended when
weights have other values than after the last backward pass. The seam compares values, because
``p.data.add_()`` does not change the version counter. It does so only in the first three steps;
later a step is assumed after each time the same number of passes as the third step took.

A program may also own a torch optimizer without using it. Then the weights of its models are
compared only after ``IDLE_PASSES`` passes without a step, and never while the optimizer steps. So
gradient accumulation, adversarial attacks that change their inputs, and LBFGS closures are not
taken for steps.

Not covered: weights that are replaced by new tensors instead of being written in place, as programs
on ``torch.func`` do. ``unseen()`` describes these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from autotune.inside.code.frames import Place, own_place
from autotune.inside.hubs.backward import BackwardListener, BackwardPass
from autotune.inside.hubs.patches import Patches, Seam

STEPS_COMPARED = 3  # by values; the last one tells how many passes a step takes
MAX_WEIGHTS = 16  # that are compared, spread over the model
MAX_VALUES = 8  # compared per weight, where its gradient is largest: a step changes it most there
# Backward passes without a step after which an optimizer counts as unused. Programs that accumulate
# gradients make many passes before their optimizer steps.
IDLE_PASSES = 16
MAX_NODES = 10_000  # of a loss's graph that are searched for weights outside of modules
TRANSFORMS = ("grad", "grad_and_value", "vjp")
# rig/failures.py recognises this sentence by its first words (UNSEEN)
MEND = (
    "autotune recognises a step when a torch.optim optimizer steps, or when weights change in "
    "place after their gradients were computed"
)


class ByHandSeam(Seam, BackwardListener):
    """Reports steps that no torch ``Optimizer`` makes.

    Backward passes run through it on the thread that makes them. The listener calls ``look()``
    whenever the program asks for a batch or calls a model, because a step that went before has
    ended by then. ``SeamSet`` calls ``rest()`` at the first step of an optimizer.

    Args:
        optimizers: Returns the living optimizers.
        models: Returns the outermost modules that were called.
        stepped: Called after each step, on the training thread.
        is_stepping: Returns whether an optimizer is within its step.

    Attributes:
        place: The line of the program that last computed gradients, in the first steps; None before
            any.
        device: Type of the device on which the weights lie, ``cpu`` before the first step.
        rests: An optimizer makes the steps, so that nothing is counted any more.
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
        self.rests = False
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
        """Begin to watch ``torch.autograd.grad``."""
        if self._patches.is_used:
            return
        grad = torch.autograd.grad
        seam = self

        def after_grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            # what follows must not be traced into compiled code
            if torch.compiler.is_compiling() or seam.rests:
                return grad(outputs, inputs, *args, **kwargs)
            seam.look()
            found = grad(outputs, inputs, *args, **kwargs)
            seam._passed(_tensors(inputs))
            return found

        self._patches.replace(torch.autograd, "grad", after_grad)

    def before_backward(self, call: BackwardPass) -> None:  # noqa: ARG002
        """Report a step that was made since the pass before."""
        self.look()

    def after_backward(self, call: BackwardPass) -> None:
        """Count a backward pass."""
        inputs = call.options.get("inputs")
        self._passed(_tensors(call.tensors if inputs is None else inputs))

    def note_transforms(self) -> None:
        """Note also whether the program computes gradients by ``torch.func``.

        This ends at the first step. ``unseen()`` names the call if no step follows.
        """
        for name in TRANSFORMS:
            self._note(name, getattr(torch.func, name))

    def look(self) -> None:
        """Report a step if one has ended.

        The listener calls it where the program returns to its loader or its model. Calls on another
        thread than that of the last backward pass are ignored, such as those of a thread that only
        loads batches.
        """
        if self.rests or not self._passes or get_ident() != self._thread or self._is_stepping():
            return
        if self._passes_per_step is None:
            self._compare()
        elif self._passes >= self._passes_per_step:
            self._passes = 0
            self._stepped()

    def rest(self) -> None:
        """Stop counting backward passes, because an optimizer makes the steps.

        Cannot be undone.
        """
        self.rests = True
        self._watched.clear()
        self._lead.clear()
        self.remove()

    def remove(self) -> None:
        """Put PyTorch back as it was, ``torch.func`` included."""
        self._noting.undo()
        self._patches.undo()

    def unseen(self) -> str:
        """Return what was seen of training in a program that has made no step.

        It is a clause for the message to the user, and says what autotune can see as a step. Empty
        if a step was made, or if the program computed no gradients.
        """
        if self._steps or self.rests:
            return ""
        if self._transform:
            return f"it takes gradients by {self._transform}, and no step was seen: {MEND}"
        if not self._all_passes:
            return ""
        did = "no weights changed in place after them"
        if self._idle:
            did = f"its {self._idle} made no step"
        return f"it computed gradients {self._all_passes} times ({self.place}), and {did}: {MEND}"

    def _note(self, name: str, original: Callable[..., Any]) -> None:
        def transform(*args: Any, **kwargs: Any) -> Any:
            if not self._transform and not torch.compiler.is_compiling():
                self._transform = f"torch.func.{name} ({own_place()})"
            return original(*args, **kwargs)

        self._noting.replace(torch.func, name, transform)

    def _passed(self, tensors: Sequence[torch.Tensor]) -> None:
        """Count a backward pass; in the first steps also keep values of weights that it reached."""
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
        """Return the weights whose values are to be compared.

        These are the models' parameters that have gradients or that the pass reached. Without any,
        they are the leaves that the loss depends on, unless the program owns an optimizer.
        """
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
        # Of several models, the one whose weights change first leads, and changes of the others do
        # not count. Otherwise a program that updates two models would make two steps per batch.
        self._lead = self._lead or changed
        if not any(_has(self._lead, leaf) for leaf in changed):
            return
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
    """A weight, and a few of its values right after a backward pass.

    ``ByHandSeam`` makes and asks it on the thread that trains. It keeps few values, because it
    reads them from the device.
    """

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
    """Return the flat indices at which a leaf's gradient is largest, as a tensor on the CPU.

    Without a gradient they are spread evenly. Of a sparse gradient they lie in the first rows
    that have one, because a step changes no other rows.
    """
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
    """Yield the leaves on which tensors depend, from at most ``MAX_NODES`` nodes of the graph."""
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
