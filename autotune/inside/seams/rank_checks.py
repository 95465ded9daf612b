"""Checks that ranks train one model: equal parameters and gradients, different batches.

Once each optimizer has made its third step, parameters, gradients and batches are compared;
parameters again later, at ever longer intervals. A difference ends the training with an error,
because the ranks would go on to train different models without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isclose, isnan
from typing import Any
from weakref import WeakSet

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from autotune.inside.data.nested import first_tensor
from autotune.inside.ranks.dtensor import is_sharded, whole
from autotune.inside.ranks.group import Group

# A round is one step by each optimizer. The ranks are checked after the third one, and their
# parameters are compared again in the later ones. A comparison takes some ms, so it becomes rare.
ROUNDS = 3
LATER_ROUNDS = (30, 300)
EVERY_ROUNDS = 1000
TOLERANCE = 1e-6


class RankChecks:
    """Compares the ranks after the first steps and from time to time.

    ``DistributionSeam`` makes one and calls it on the thread that trains. All ranks must call
    ``stepped()`` in the same order, because they communicate.

    Args:
        group: The processes that train together.
        optimizers: Returns the living optimizers.

    Attributes:
        has_loader: The program iterates a loader whose data the ranks share out.
    """

    def __init__(self, group: Group, optimizers: Callable[[], Sequence[Optimizer]]) -> None:
        self._group = group
        self._optimizers = optimizers
        self._round = 0
        self._in_round: WeakSet[Optimizer] = WeakSet()
        self._round_length = 1
        self._inputs: list[float | None] = []
        self._gradients: list[float] = []
        self._hook: RemovableHandle | None = None
        self.has_loader = False

    def begin(self) -> None:
        """Begin to note gradients and batches for the first comparison."""
        self._hook = register_optimizer_step_pre_hook(self._note_gradients)

    @property
    def is_noting(self) -> bool:
        """Whether the first comparison is still to come."""
        return self._hook is not None

    def note_batch(self, inputs: tuple[Any, ...]) -> None:
        """Note which batch this rank trains on."""
        if self._hook is not None:
            self._inputs.append(_fingerprint(inputs))

    def stepped(self, optimizer: Optimizer, *, calls_models: bool) -> bool:
        """Note the step of an optimizer, and compare the ranks if that is due.

        Args:
            optimizer: The one that made a step.
            calls_models: Whether the program has called a module whose parameters are trained.

        Returns:
            Whether this was the step of the first comparison.

        Raises:
            RuntimeError: if the ranks' models differ, if all ranks train on the same batches, or if
                the program calls no module whose parameters are trained.
        """
        if optimizer in self._in_round:  # its second step in this round begins the next
            self._round += 1
            self._round_length = len(self._in_round)
            self._in_round.clear()
        self._in_round.add(optimizer)
        if len(self._in_round) < self._round_length:
            return False
        if self._hook is not None and self._round == ROUNDS - 1:
            self.end()
            self._check(calls_models=calls_models)
            return True
        if len(self._in_round) == self._round_length and _is_checked_again(self._round + 1):
            self._compare(f"check {self._round + 1}", _sums(parameters_of(self._optimizers())))
        return False

    def end(self) -> None:
        """Stop noting gradients and batches."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _check(self, *, calls_models: bool) -> None:
        if self._group.world_size == 1:
            return
        if not calls_models:
            raise RuntimeError(
                "the program calls no module whose parameters an optimizer trains, so the ranks "
                "cannot train together. Leave devices out of the search."
            )
        state = [*self._gradients, *_sums(parameters_of(self._optimizers()))]
        inputs = self._compare("check", state)
        # Ranks that share out a loader may still see equal numbers: of equal samples, or of inputs
        # without a tensor.
        is_shared_out = self.has_loader and len(set(self._inputs)) <= 1
        if not is_shared_out and all(theirs == self._inputs for theirs in inputs):
            raise RuntimeError(
                "all ranks train on the same batches, or on inputs that cannot be compared: the "
                "program makes its batches without a DataLoader, or chooses them by its own random "
                "generator or order. Leave devices out of the search."
            )

    def _compare(self, name: str, state: list[float]) -> list[list[float | None]]:
        """Check that all ranks have the same numbers.

        Args:
            name: Name of the comparison, the same on all ranks.
            state: This rank's numbers.

        Returns:
            The fingerprints of the ranks' inputs in the first steps, one list per rank.

        Raises:
            RuntimeError: if the numbers differ by more than rounding.
        """
        size = self._group.world_size
        every = self._group.store.gather(name, (state, self._inputs), self._group.rank, size)
        self._inputs = self._inputs if name == "check" else []
        if not all(_are_equal(theirs, state) for theirs, _ in every):
            raise RuntimeError(
                "the ranks' models drifted apart: the program changes its weights or gradients in "
                "a way that autotune cannot see. Leave devices out of the search."
            )
        return [inputs for _, inputs in every]

    def _note_gradients(self, optimizer: Optimizer, *_: Any) -> None:
        """Note the norm of an optimizer's gradients before a step, to compare it between ranks."""
        self._gradients.append(sum(_size_of_gradient(p) for p in parameters_of([optimizer])))


def parameters_of(optimizers: Iterable[Optimizer]) -> list[torch.nn.Parameter]:
    """Return the parameters of all optimizers, each once, in the order of their groups."""
    every = (
        p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]
    )
    return list({id(p): p for p in every}.values())


def _is_checked_again(round_: int) -> bool:
    return round_ in LATER_ROUNDS or round_ % EVERY_ROUNDS == 0


def _sums(parameters: Iterable[torch.Tensor]) -> list[float]:
    """Return the sum and the norm of all parameters, in fp64.

    They identify a state of the model cheaply: the device is waited for only once.
    """
    parts = [whole(p.detach()).double() for p in parameters]
    both = [torch.stack([part.sum(), part.square().sum()]) for part in parts]
    total = sum(pair.to(both[0].device) for pair in both) if both else torch.zeros(2)
    total = torch.as_tensor(total).cpu()
    return [float(total[0]), float(total[1].sqrt())]


def _size_of_gradient(parameter: torch.Tensor) -> float:
    """Return the norm of a gradient; 0 without one, and for sharded ones, which differ by rank."""
    if parameter.grad is None or is_sharded(parameter):
        return 0.0
    return float(parameter.grad.detach().double().norm())


def _are_equal(ours: list[float], theirs: list[float]) -> bool:
    """Tell whether numbers are equal up to rounding. NaN counts as equal to NaN."""
    return len(ours) == len(theirs) and all(
        isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or (isnan(a) and isnan(b))
        for a, b in zip(ours, theirs, strict=True)
    )


def _fingerprint(inputs: tuple[Any, ...]) -> float | None:
    """Return a number that identifies a batch: equal batches have equal numbers.

    Each value is weighted by its position, so that the order of samples counts. None if the inputs
    contain no tensor.
    """
    tensor = first_tensor(inputs)
    if tensor is None:
        return None
    flat = tensor.detach().double().flatten()
    return float((flat * torch.arange(1, len(flat) + 1, device=flat.device)).sum())
