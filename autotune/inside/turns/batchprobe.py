"""Compare the program's steps at two batch sizes, before the learning rate follows the new one.

How the learning rate should follow the batch size depends on the loss. The probe watches some steps
with the old batch size and some with the new one, all at the same learning rate. If the loss
averages over samples, the larger batch gives gradients of the same norm or, because noise averages
out, a smaller one. If the loss sums over samples, the norm grows.

The probe also finds parts of the program that keep the old number of samples. A generator whose
noise is created with a fixed size is an example.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch.optim import Optimizer

from autotune.inside.hubs.step import StepHub
from autotune.inside.seams.forward import ForwardSeam, OutermostCall
from autotune.inside.seams.gradients import GradientNorms
from autotune.measurement.batch_effect import BatchEffect
from autotune.program.applied_config import AppliedConfig

MIN_STEPS = 2
MAX_STEPS = 12
WORTH_S = 0.7  # per phase: programs with longer steps are watched for MIN_STEPS only
LEFT_OUT = 1  # steps after the change: the program may hold a batch of the old size already


@dataclass(frozen=True)
class _Phase:
    """Medians over the steps of one phase; None where nothing was seen.

    Attributes:
        norm: Gradient norm of the optimizer that has the most parameters.
        loss: The loss.
        calls: How often each module was called with gradients, by its class and the first dimension
            of its input.
    """

    norm: float | None
    loss: float | None
    calls: Counter[OutermostCall]


class BatchProbe:
    """Watches two phases of steps, before and after the batch size changes, and compares them.

    ``BatchProbes`` makes it, and ``LeadRank`` calls the methods in the program's main thread,
    between two steps.

    Args:
        before: Samples of a batch in the first phase.
        after: Samples of a batch in the second phase.
        forward: The seam that records calls of modules; recording stays on until ``end()``.
        steps: The hub of optimizer steps, at which norms of gradients are taken until then.

    Attributes:
        after: Samples of a batch in the second phase.
    """

    def __init__(self, before: int, after: int, forward: ForwardSeam, steps: StepHub) -> None:
        self._before, self.after = before, after
        self._forward = forward
        forward.records_calls = True
        self._calls: Counter[OutermostCall] = Counter()
        self._gradients = GradientNorms()
        self._hub = steps
        steps.join(self._gradients)
        self._phases: list[_Phase] = []
        self._losses: list[torch.Tensor] = []
        self._began = perf_counter()
        self._steps = 0

    def step(self, loss: torch.Tensor | None) -> bool:
        """Count a step; return whether the present phase has seen enough.

        A phase lasts ``MAX_STEPS`` steps or ``WORTH_S`` seconds, but at least ``MIN_STEPS`` steps.
        The first ``LEFT_OUT`` steps of the second phase are not counted.

        Args:
            loss: The step's loss, or None if the program shows none. It is read when the phase
                ends, because reading it here would wait for the device in each step.
        """
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
        """Whether the second phase has begun."""
        return bool(self._phases)

    def turn(self) -> None:
        """End the first phase; the caller has just changed the batch size."""
        self._phases.append(self._phase())
        self._began, self._steps, self._losses = perf_counter(), 0, []
        self._calls = Counter()

    def end(self) -> BatchEffect:
        """Stop watching; return how the second phase differs from the first one."""
        before, after = self._phases[0], self._phase()
        self._hub.leave(self._gradients)
        self._forward.records_calls = False
        return BatchEffect(
            self.after / self._before,
            _ratio(before.norm, after.norm),
            _ratio(before.loss, after.loss),
            self._unmoved(before.calls, after.calls),
        )

    def _unmoved(self, before: Counter[OutermostCall], after: Counter[OutermostCall]) -> str:
        """Return the class of a module that keeps getting the old batch size; empty if none does.

        Such a module counts only if another one gets the new batch size: otherwise the change has
        not reached the program's batches at all.
        """
        own = [call for call in before if call.first_dim == self._before]
        stays = [call.module for call in own if after[call] > before[call] / 2]
        has_new = any(call.first_dim == self.after for call in after)
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


class BatchProbes:
    """Begins a probe where the effect of another batch size is not known yet.

    ``LeadRank`` has one and calls it in the program's main thread, between two steps.

    Args:
        forward: The seam that records calls of modules.
        steps: The hub of optimizer steps.

    Attributes:
        present: The probe that watches now; None if none does.
        effect: What the last one found.
    """

    def __init__(self, forward: ForwardSeam, steps: StepHub) -> None:
        self._forward, self._steps = forward, steps
        self._tried: set[int] = set()  # also sizes that left it open what the loss does
        self.present: BatchProbe | None = None
        self.effect: BatchEffect | None = None

    def begin(self, configs: Sequence[AppliedConfig], present: AppliedConfig | None) -> bool:
        """Begin a probe if one of these configs needs it; return whether it does.

        None does if the batch size stays, if the program applies it itself, or if it is known
        whether gradients grow with the batch or was tried in vain.

        Args:
            configs: The configs that are to take turns.
            present: The config that the program trains under; None while it runs as written.
        """
        applied = configs[0]
        before = present.config if present else applied.baseline
        own = before.get("batch_size")
        sizes = [one.config.get("batch_size") for one in configs]
        tried = {own, *self._tried}
        new = next((size for size in sizes if size and size not in tried), None)
        traits = applied.traits
        by_itself = "batch_size" in traits.program_knobs or "batch_size" in traits.flags
        known = applied.sums is not None or (self.effect and self.effect.sums is not None)
        if not own or not new or by_itself or known:
            return False
        self._tried |= {int(own), int(new)}
        self.present = BatchProbe(int(own), int(new), self._forward, self._steps)
        return True

    def end(self) -> BatchEffect:
        """End the present probe, and return what it found."""
        ended, self.present = self.present, None
        assert ended is not None, "a probe ends after it has begun"
        self.effect = ended.end()
        return self.effect


def _size(optimizer: Optimizer) -> int:
    return sum(p.numel() for group in optimizer.param_groups for p in group["params"])


def _ratio(before: float | None, after: float | None) -> float | None:
    """Return ``after / before``; None if one is missing or the two differ in sign."""
    if before is None or after is None or not before * after > 0:
        return None
    return after / before
