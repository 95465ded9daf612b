"""The seam of programs that train without a torch optimizer: it infers steps from backward passes.

Such a program computes gradients, by ``backward()`` or ``torch.autograd.grad``, and then writes its
weights itself, or leaves that to an object that is not a torch ``Optimizer``. A step has ended when
weights have other values than after the last backward pass. (Their version counters would not do:
``p.data.add_()`` leaves them.) Only the first three steps are found in this way; later a step is
assumed after each time the same number of passes as the third step took.

A program may also own a torch optimizer without using it. Then the weights of its models are
compared only after ``IDLE_PASSES`` passes without a step, and never while the optimizer steps. So
gradient accumulation, adversarial attacks that change their inputs, and LBFGS closures are not
taken for steps.

Not covered: weights that are replaced by new tensors instead of being written in place, as programs
on ``torch.func`` do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from threading import get_ident
from typing import Any

import torch

from autotune.inside.code.frames import Place, own_place
from autotune.inside.hubs.backward import BackwardListener, BackwardPass
from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.listener import Listener
from autotune.inside.seams.forward import ForwardSeam
from autotune.inside.seams.optimizer import OptimizerSeam
from autotune.inside.seams.scaling import graph_of

STEPS_COMPARED = 3  # by their weights; the last one tells how many passes a step takes
MAX_WEIGHTS = 16  # that are compared, spread over the model
PART = 2**20  # values of a weight that are summed at once
# Backward passes without a step after which an optimizer counts as unused. Programs that accumulate
# gradients make many passes before their optimizer steps.
IDLE_PASSES = 16
MAX_NODES = 10_000  # of a loss's graph that are searched for weights
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
        optimizer: Knows the living optimizers, and whether one of them steps now.
        stepped: Called after each step, on the training thread.

    Attributes:
        place: The line of the program that last computed gradients, in the first steps; None before
            any.
        device: Type of the device on which the weights lie, ``cpu`` before the first step.
        rests: An optimizer makes the steps, so that nothing is counted any more.
    """

    def __init__(
        self, optimizer: OptimizerSeam, forward: ForwardSeam, stepped: Callable[[], None]
    ) -> None:
        self._optimizer, self._forward, self._stepped = optimizer, forward, stepped
        self._patches = Patches()
        self.rests = False
        self.place: Place | None = None
        self.device = "cpu"
        self._fingerprints: dict[int, tuple[torch.Tensor, float]] = {}  # by the id of the weight
        self._lead: set[int] = set()
        self._made: list[int] = []  # passes of the first steps
        self._passes = 0  # since the last step
        self._thread = 0

    def install(self, listener: Listener | None = None) -> None:
        """Begin to watch ``torch.autograd.grad``; a listener is told what it differentiates."""
        if not self._patches.is_used:
            self._patches.wrap(torch.autograd, "grad", partial(self._grad, listener))

    def _grad(
        self,
        listener: Listener | None,
        original: Callable[..., Any],
        outputs: Any,
        inputs: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        # what follows must not be traced into compiled code
        if torch.compiler.is_compiling() or self.rests:
            return original(outputs, inputs, *args, **kwargs)
        self.look()
        if listener is not None:
            for loss in _tensors(outputs):
                listener.loss_seen(loss)
        found = original(outputs, inputs, *args, **kwargs)
        self._passed(_tensors(inputs))
        return found

    def before_backward(self, call: BackwardPass) -> None:  # noqa: ARG002
        """Report a step that was made since the pass before."""
        self.look()

    def after_backward(self, call: BackwardPass) -> None:
        """Count a backward pass."""
        inputs = call.options.get("inputs")
        self._passed(_tensors(call.tensors if inputs is None else inputs))

    def look(self) -> None:
        """Report a step if one has ended.

        Calls on another thread than that of the last backward pass are ignored, such as those of a
        thread that only loads batches.
        """
        is_elsewhere = get_ident() != self._thread
        if self.rests or not self._passes or is_elsewhere or self._optimizer.is_stepping:
            return
        if len(self._made) < STEPS_COMPARED:
            self._compare()
        elif self._passes >= self._made[-1]:
            self._passes = 0
            self._stepped()

    def rest(self) -> None:
        """Stop counting backward passes for good, because an optimizer makes the steps."""
        self.rests = True
        self._fingerprints.clear()
        self.remove()

    def unseen(self) -> str:
        """Return what was seen of training in a program that has made no step.

        A clause for the user; empty if a step was made, or if no gradients were computed.
        """
        if self._made or self.rests or not self._passes:
            return ""
        return (
            f"it computed gradients {self._passes} times ({self.place}), and no weights changed in "
            f"place after them: {MEND}"
        )

    def _passed(self, tensors: Sequence[torch.Tensor]) -> None:
        self._thread = get_ident()
        self._passes += 1
        if len(self._made) == STEPS_COMPARED:
            return
        self.place = own_place() or self.place
        is_idle = bool(self._optimizer.optimizers)
        if is_idle and self._passes + sum(self._made) < IDLE_PASSES:
            return
        leaves = list(_leaves(tensors))
        models = {id(weight) for model in self._forward.roots for weight in model.parameters()}
        weights = [leaf for leaf in leaves if id(leaf) in models] or ([] if is_idle else leaves)
        for leaf in weights[:: -(-len(weights) // MAX_WEIGHTS) or 1]:
            if id(leaf) not in self._fingerprints:
                self._fingerprints[id(leaf)] = leaf, _fingerprint(leaf)

    def _compare(self) -> None:
        changed = {
            key: leaf
            for key, (leaf, before) in self._fingerprints.items()
            if _fingerprint(leaf) != before
        }
        for key in changed:
            del self._fingerprints[key]
        # Of several models, the one whose weights change first leads, and changes of the others do
        # not count. Otherwise a program that updates two models would make two steps per batch.
        self._lead = self._lead or set(changed)
        if self._lead.isdisjoint(changed):
            return
        self.device = next(iter(changed.values())).device.type
        self._made.append(self._passes)
        self._passes = 0
        if len(self._made) == STEPS_COMPARED:
            self._fingerprints.clear()
        self._stepped()


def _fingerprint(leaf: torch.Tensor) -> float:
    """Return a weighted sum of the values, which flipped signs and another order change as well.

    Of a sharded weight, those of this rank; in parts, as a whole copy in double precision is large.
    """
    local: Any = leaf.to_local() if hasattr(leaf, "to_local") else leaf
    flat = (torch.view_as_real(local) if local.is_complex() else local).detach().flatten()
    total = torch.zeros((), dtype=torch.float64, device=flat.device)
    for start in range(0, len(flat), PART):
        part = flat[start : start + PART].double()
        ends = 1 + start / len(flat), 1 + (start + len(part)) / len(flat)
        total += part @ torch.linspace(*ends, len(part), dtype=part.dtype, device=part.device)
    return float(total)


def _tensors(value: Any) -> list[torch.Tensor]:
    found = [value] if isinstance(value, torch.Tensor) else value
    return [tensor for tensor in found if isinstance(tensor, torch.Tensor)]


def _leaves(tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the leaves on which tensors depend, from at most ``MAX_NODES`` nodes of the graph."""
    yield from (t for t in tensors if t.is_leaf and t.requires_grad)
    for node in islice(graph_of(tensors), MAX_NODES):
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
