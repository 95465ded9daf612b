"""Batch probe: what another batch does to the steps of the program, before its rate follows.

Some steps with the batch as it was, some with the new one, all at the rate as it was. Gradients of
a loss that averages over samples are as long for both, or shorter for the larger batch by the noise
that averages out; those of one that sums are longer. And a part of the program that sizes what it
makes by itself, as noise for a generator, goes on with as many samples as before.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch.optim import Optimizer

from autotune.inside.seams.forward import ForwardSeam, OutermostCall
from autotune.inside.seams.gradients import GradientsSeam
from autotune.measurement.measurement import BatchEffect

MIN_STEPS = 2
MAX_STEPS = 12
WORTH_S = 0.7  # for each batch; steps that take longer are seen as rarely as can be
LEFT_OUT = 1  # after the change: the program may hold a batch that it took before


@dataclass(frozen=True)
class _Phase:
    """Medians over some steps; None where nothing was seen.

    Attributes:
        norm: Of the gradients of the optimizer that trains most parameters.
        loss: Of the loss.
        calls: How often a module was called with gradients, by its class and its samples.
    """

    norm: float | None
    loss: float | None
    calls: Counter[OutermostCall]


class BatchProbe:
    """Watches two phases of steps, and compares them.

    Args:
        before: Samples of a batch in the first phase.
        after: Samples of a batch in the second phase.
        forward: Notes the calls of modules meanwhile.
    """

    def __init__(self, before: int, after: int, forward: ForwardSeam) -> None:
        self._before, self._after = before, after
        self._forward = forward
        forward.records_calls = True
        self._calls: Counter[OutermostCall] = Counter()
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
        self._calls.update(self._forward.calls)
        seen = self._steps - (LEFT_OUT if self.has_turned else 0)
        is_late = perf_counter() - self._began > WORTH_S
        return seen >= MAX_STEPS or (is_late and seen >= MIN_STEPS)

    @property
    def has_turned(self) -> bool:
        """The second phase is on."""
        return bool(self._phases)

    def turn(self) -> None:
        """The batch changes here."""
        self._phases.append(self._phase())
        self._began, self._steps, self._losses = perf_counter(), 0, []
        self._calls = Counter()

    def end(self) -> BatchEffect:
        """Return what both phases say."""
        before, after = self._phases[0], self._phase()
        self._gradients.remove()
        self._forward.records_calls = False
        return BatchEffect(
            self._after / self._before,
            _ratio(before.norm, after.norm),
            _ratio(before.loss, after.loss),
            self._unmoved(before.calls, after.calls),
        )

    def _unmoved(self, before: Counter[OutermostCall], after: Counter[OutermostCall]) -> str:
        """What goes on with as many samples as before, while something else has the new batch."""
        own = [call for call in before if call.first_dim == self._before]
        stays = [call.module for call in own if after[call] > before[call] / 2]
        has_new = any(call.first_dim == self._after for call in after)
        return stays[0] if stays and has_new else ""

    def _phase(self) -> _Phase:
        norms = self._gradients.take()
        lead = max(norms, key=_size, default=None)
        losses = [float(loss) for loss in self._losses]
        return _Phase(
            median(norms[lead]) if lead is not None else None,
            median(losses) if losses else None,
            self._calls,
        )


def _size(optimizer: Optimizer) -> int:
    return sum(p.numel() for group in optimizer.param_groups for p in group["params"])


def _ratio(before: float | None, after: float | None) -> float | None:
    """How many times the one is the other; None for numbers that have no such ratio."""
    if before is None or after is None or not before * after > 0:
        return None
    return after / before
