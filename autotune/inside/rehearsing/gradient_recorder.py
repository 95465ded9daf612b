"""Record how far the gradients of the batches of one step differ from their mean.

The program runs with accumulated gradients, so all batches of a step meet the same weights.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from autotune.measurement.learning.training_trace import GradientGroup


class GradientRecorder:
    """Sums up the gradients of each batch and of each step.

    ``TrainingRecorder`` calls it on the program's main thread. Autograd calls the hooks of the
    weights during backward passes, before clipping can change their gradients.
    """

    def __init__(self) -> None:
        self.groups: list[GradientGroup] = []
        self._hooked: dict[int, torch.Tensor] = {}  # kept, so that no other gets its id
        self._latest: dict[int, torch.Tensor] = {}
        self._before: dict[int, torch.Tensor] = {}
        self._squares: list[float] = []

    def watch(self, weights: Iterable[torch.Tensor]) -> None:
        """Follow the gradients of these weights as well."""
        for weight in weights:
            if weight.requires_grad and weight.is_leaf and id(weight) not in self._hooked:
                self._hooked[id(weight)] = weight
                weight.register_post_accumulate_grad_hook(self._accumulated)

    def part_ended(self) -> None:
        """Note that what was accumulated since the last call are the gradients of one batch."""
        if not self._latest:
            return
        square = 0.0
        for key, total in self._latest.items():
            before = self._before.get(key)
            own = total if before is None else total - before
            square += float(own.double().square().sum())
        self._squares.append(square)
        self._before |= self._latest
        self._latest = {}

    def stepped(self, samples: int) -> None:
        """Note that a step has been made with the gradients so far.

        Args:
            samples: Of one batch.
        """
        self.part_ended()
        parts = len(self._squares)
        if parts > 1:
            whole = sum(float(total.double().square().sum()) for total in self._before.values())
            mean_square = sum(self._squares) / parts
            self.groups.append(GradientGroup(parts, samples, mean_square, whole / parts**2))
        self._squares, self._before = [], {}

    def _accumulated(self, weight: torch.Tensor) -> None:
        if weight.grad is not None:
            self._latest[id(weight)] = weight.grad.detach().clone()
