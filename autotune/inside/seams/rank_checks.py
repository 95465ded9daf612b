"""Checks from time to time that the ranks train one model.

Before a config is recommended, its ranks are compared with one process (``tuning.checking``). What
a program does later, for example by its own random numbers, would make the ranks train different
models without a word, so their weights are compared again at ever longer intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isclose, isnan
from typing import Any

import torch
from torch.optim import Optimizer

from autotune.inside.data.nested import first_tensor
from autotune.inside.ranks.dtensor import whole
from autotune.inside.ranks.group import Group

# Steps of any optimizer, after which weights are compared. That takes some ms, so it becomes rare.
FIRST_STEPS = (3, 30, 300)
EVERY_STEPS = 1000
TOLERANCE = 1e-6


class DriftCheck:
    """Compares the ranks' weights after some of their steps.

    ``DistributionSeam`` makes one and calls it on the thread that trains. All ranks must call
    ``stepped()`` in the same order, because they wait for each other.

    Attributes:
        has_loader: The program iterates a loader whose data the ranks share out.
    """

    def __init__(self, group: Group, optimizers: Callable[[], Sequence[Optimizer]]) -> None:
        self._group = group
        self._optimizers = optimizers
        self._steps = 0
        self._batches: list[float] = []
        self.has_loader = False

    def note_batch(self, inputs: tuple[Any, ...]) -> None:
        """Note which batch this rank trains on.

        Not the first one: the program may have drawn it at set-up, when all ranks draw alike.
        """
        if 0 < self._steps < FIRST_STEPS[0] and not self.has_loader:
            tensor = first_tensor(inputs)
            self._batches.append(0.0 if tensor is None else float(tensor.detach().double().sum()))

    def stepped(self) -> None:
        """Count a step, and compare the ranks if that is due.

        Raises:
            RuntimeError: if the ranks' weights differ by more than rounding, or their batches do
                not.
        """
        self._steps += 1
        is_due = self._steps in FIRST_STEPS or self._steps % EVERY_STEPS == 0
        if self._group.world_size == 1 or not is_due:
            return
        own, batches = _sums(parameters_of(self._optimizers())), self._batches
        name, size = f"weights after {self._steps} steps", self._group.world_size
        every = self._group.store.gather(name, (own, batches), self._group.rank, size)
        self._batches = []
        if batches and all(theirs == batches for _, theirs in every):
            raise RuntimeError(
                "all ranks train on the same batches, or on inputs that cannot be compared: the "
                "program makes its batches without a DataLoader, or chooses them by its own random "
                "generator or order. Leave devices out of the search."
            )
        if not all(_are_equal(theirs, own) for theirs, _ in every):
            raise RuntimeError(
                "the ranks' models drifted apart: the program changes its weights or gradients in "
                "a way that autotune cannot see. Leave devices out of the search."
            )


def parameters_of(optimizers: Iterable[Optimizer]) -> list[torch.nn.Parameter]:
    """Return the parameters of all optimizers, each once, in the order of their groups."""
    every = (
        p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]
    )
    return list({id(p): p for p in every}.values())


def _sums(parameters: Iterable[torch.Tensor]) -> list[float]:
    """Return the sum and the norm of all parameters, in fp64; the device is waited for once."""
    both = [_sum_and_square(p.detach()) for p in parameters]
    total = torch.as_tensor(sum(pair.to(both[0].device) for pair in both)).expand(2).cpu()
    return [float(total[0]), float(total[1]) ** 0.5]


def _sum_and_square(parameter: torch.Tensor) -> torch.Tensor:
    part = whole(parameter).double()  # gone before the next: all of a sharded model may not fit
    return torch.stack([part.sum(), part.square().sum()])


def _are_equal(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    return all(
        isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or (isnan(a) and isnan(b))
        for a, b in zip(ours, theirs, strict=True)
    )
