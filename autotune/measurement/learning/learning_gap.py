"""Learning gap: by how much a config's loss is larger than that of the program as written.

Of configs that change learning on purpose: another precision, or a larger global batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from autotune.measurement.interval import Interval
from autotune.measurement.learning.training_trace import (
    LAST_LOSSES,
    TINY,
    TracedStep,
    TrainingTrace,
)

BLOCKS = 6  # of steps, by which the difference of two losses is known
LEAST_LOSS = 0.1  # of the mean, to which a difference is relative at least
MOST_GAP = 10.0  # relative difference that stands for a loss of NaN
# Quantiles of Student's t, of a two-sided 95 % interval, by the degrees of freedom from 1
STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571)
FIRST = 1 / 8  # of the steps, whose mean loss is where a training begins


def loss_gap(written: TrainingTrace, own: TrainingTrace) -> Interval | None:
    """Return by how much the loss of a config is larger at equal samples, relative, with 95 %.

    The steps after the first ones are taken in blocks, whose differences are the sample of a
    Student's t interval. None of too few steps with losses.
    """
    pairs = [
        (a.loss, b.loss)
        for a, b in zip(written.steps, own.steps, strict=False)
        if a.loss is not None and b.loss is not None
    ]
    if any(math.isfinite(a) and not math.isfinite(b) for a, b in pairs):
        return Interval(MOST_GAP, MOST_GAP, MOST_GAP)
    pairs = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    size = len(pairs) // (BLOCKS + 1)
    if size < 1:
        return None
    pairs = pairs[len(pairs) - BLOCKS * size :]
    least = max(LEAST_LOSS * abs(fmean(a for a, _ in pairs)), TINY)
    blocks = []
    for number in range(BLOCKS):
        ours, theirs = zip(*pairs[number * size : (number + 1) * size], strict=True)
        blocks.append((fmean(theirs) - fmean(ours)) / max(abs(fmean(ours)), least))
    return pooled(blocks)


def relative_loss(written: TrainingTrace, own: TrainingTrace, per_update: float) -> float | None:
    """Return by how much a config's loss is larger, relative, late in what both have trained.

    Args:
        own: From the same random state as the program as written.
        per_update: Updates of the program as written that take the same samples as one of the
            config's, or the same time.

    Returns:
        None if either shows no losses, or if the program as written loses its numbers itself.
    """
    end = min(len(written.steps), len(own.steps) * per_update)
    ours = _late(written.steps, 1.0, end)
    theirs = _late(own.steps, per_update, end)
    if not ours or not theirs or not all(map(math.isfinite, ours)):
        return None
    if not all(map(math.isfinite, theirs)):
        return MOST_GAP
    usual = [step.loss for step in written.steps if step.loss is not None]
    least = max(LEAST_LOSS * abs(fmean(filter(math.isfinite, usual))), TINY)
    return min(MOST_GAP, (fmean(theirs) - fmean(ours)) / max(abs(fmean(ours)), least))


def fall(trace: TrainingTrace) -> float:
    """Return by how much the loss falls from the first steps to the second half, relative to it.

    A config that learns nothing has a loss that is larger by this. 0.0 if no losses are shown.
    """
    losses = [s.loss for s in trace.steps if s.loss is not None and math.isfinite(s.loss)]
    if len(losses) < 2:
        return 0.0
    first, late = losses[: math.ceil(FIRST * len(losses))], losses[len(losses) // 2 :]
    least = max(LEAST_LOSS * abs(fmean(losses)), TINY)
    return (fmean(first) - fmean(late)) / max(abs(fmean(late)), least)


def ceilings(written: TrainingTrace, per_update: float, most: float) -> tuple[float, ...]:
    """Return for each update of a config the mean of its last losses that is hopeless.

    That is one by the relative gap *most*; *per_update* as for ``relative_loss``. Empty if the
    program as written does not show a finite loss in every step.
    """
    losses = [step.loss for step in written.steps]
    known = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    if len(known) < len(losses) or not known:
        return ()
    least, found = max(LEAST_LOSS * abs(fmean(known)), TINY), []
    for number in range(1, int(len(known) / per_update) + 1):
        end = max(1, round(number * per_update))
        usual = fmean(known[max(0, round((number - LAST_LOSSES) * per_update)) : end])
        found.append(usual + most * max(abs(usual), least))
    return tuple(found)


def pooled(gaps: Sequence[float]) -> Interval | None:
    """Return the mean of independent gaps with its Student's t interval of 95 %.

    None of fewer than two, which show no spread.
    """
    if len(gaps) < 2:
        return None
    centre = fmean(gaps)
    degrees = min(len(gaps) - 1, len(STUDENT_T))  # more make the interval no narrower
    half = STUDENT_T[degrees - 1] * stdev(gaps) / math.sqrt(len(gaps))
    return Interval(centre, centre - half, centre + half)


def _late(steps: Sequence[TracedStep], per_update: float, end: float) -> list[float]:
    # A step's loss is computed before its update, so it shows what the earlier samples taught
    numbered = ((number * per_update, step.loss) for number, step in enumerate(steps))
    return [loss for at, loss in numbered if loss is not None and end / 2 < at <= end]
