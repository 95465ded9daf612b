"""Batch probe: what another batch does to the steps of the program, before its rate follows.

Some steps with the batch as it was, some with the new one, all at the rate as it was. Gradients of
a loss that averages over samples are as long for both, or shorter for the larger batch by the noise
that averages out; those of one that sums are longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch.optim import Optimizer

from autotune.inside.seams.gradients import GradientsSeam
from autotune.measurement import BatchEffect

LEAST_STEPS = 2
MOST_STEPS = 12
WORTH_S = 0.7  # for each batch; steps that take longer are seen as rarely as can be
LEFT_OUT = 1  # after the change: the program may hold a batch that it took before


@dataclass(frozen=True)
class _Phase:
    """Medians over some steps; None where nothing was seen.

    Attributes:
        norm: Of the gradients of the optimizer that trains most parameters.
        loss: Of the loss.
    """

    norm: float | None
    loss: float | None


class BatchProbe:
    """Watches two phases of steps, and compares them.

    Args:
        growth: Samples of a batch in the second phase, times those in the first.
    """

    def __init__(self, growth: float) -> None:
        self._growth = growth
        self._gradients = GradientsSeam()
        self._gradients.install()
        self._phases: list[_Phase] = []
        self._losses: list[torch.Tensor] = []
        self._began = perf_counter()
        self._steps = 0

    def step(self, loss: torch.Tensor | None) -> bool:
        """Count a step; return whether the present phase has seen enough."""
        self._steps += 1
        if self.has_turned and self._steps <= LEFT_OUT:
            self._gradients.take()
            self._began = perf_counter()
            return False
        if loss is not None:
            self._losses.append(loss)
        seen = self._steps - (LEFT_OUT if self.has_turned else 0)
        is_late = perf_counter() - self._began > WORTH_S
        return seen >= MOST_STEPS or (is_late and seen >= LEAST_STEPS)

    @property
    def has_turned(self) -> bool:
        """The second phase is on."""
        return bool(self._phases)

    def turn(self) -> None:
        """The batch changes here."""
        self._phases.append(self._phase())
        self._began, self._steps, self._losses = perf_counter(), 0, []

    def end(self) -> BatchEffect:
        """Return what both phases say."""
        before, after = self._phases[0], self._phase()
        self._gradients.remove()
        return BatchEffect(
            self._growth, _ratio(before.norm, after.norm), _ratio(before.loss, after.loss)
        )

    def _phase(self) -> _Phase:
        norms = self._gradients.take()
        lead = max(norms, key=_size, default=None)
        losses = [float(loss) for loss in self._losses]
        return _Phase(
            median(norms[lead]) if lead is not None else None, median(losses) if losses else None
        )


def _size(optimizer: Optimizer) -> int:
    return sum(p.numel() for group in optimizer.param_groups for p in group["params"])


def _ratio(before: float | None, after: float | None) -> float | None:
    """How many times the one is the other; None for numbers that have no such ratio."""
    if before is None or after is None or not before * after > 0:
        return None
    return after / before
