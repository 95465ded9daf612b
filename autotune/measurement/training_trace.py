"""Training trace: what the first steps of a program learned, and whether two runs learned the same.

Equal programs need not compute equal numbers: another order of sums changes the last bits, and
training makes such differences grow. How far they grow in a program is measured, not assumed: the
program as written runs once more with each weight *shaken*, that is moved by some units in its last
place. A config trains the same if its losses and weights stay as near to those of the program as
written, within a factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from statistics import fmean, median, stdev

from autotune.measurement.interval import Interval
from autotune.measurement.stats import student_t

# A config rounds in each sum of each step, a shaken run only moves its weights once. Seen on five
# programs with 4-7 configs each: up to twice the deviation of the shaken run.
FACTOR = 20.0
MOST_NOISE = 1e-3  # deviation of the shaken run, beyond which nothing can be told
LEAST_STEPS = 5  # that must be comparable
TINY = 1e-30
LEAST_LOSS = 0.1  # of the mean, to which a difference is relative at least
BLOCKS = 6  # of steps, by which the difference of two losses is known


@dataclass(frozen=True)
class TracedStep:
    """One optimizer step, as it ended.

    Attributes:
        loss: Mean of the losses that made its gradients; None if none was seen.
        fed: Checksum of the model's inputs; None if there were no tensors.
        rate: The learning rate of the optimizer's first group; None without an optimizer.
        epoch: Number of the pass over the training data, from 1; 0 without a loader.
        weights: Some of the weights after the step, always the same ones.
        buffers: The same of the model's buffers, such as BatchNorm's running means.
    """

    loss: float | None
    fed: int | None
    rate: float | None
    epoch: int
    weights: tuple[float, ...] = ()
    buffers: tuple[float, ...] = ()


@dataclass(frozen=True)
class TrainingTrace:
    """The first steps of one run.

    Attributes:
        steps: In order.
        rounding: Relative size of one unit in the last place, in the precision of the matrix
            products.
    """

    steps: tuple[TracedStep, ...]
    rounding: float


class Sameness(StrEnum):
    """How the training of two runs compares. Users read the values."""

    BITS = "same, bit for bit"
    ROUNDING = "same within rounding"
    DIFFERS = "differs"
    UNKNOWN = "not compared"


@dataclass(frozen=True)
class Agreement:
    """What comparing a config's training with that of the program as written gave.

    Attributes:
        sameness: The verdict.
        steps: How many steps were compared.
        epochs: How many short epochs these took.
        part: What differs first: ``samples``, ``losses``, ``weights``, ``buffers`` or ``learning
            rates``.
        at: The step at which it does, from 1.
        at_epoch: The epoch of that step.
        begins_epoch: Whether it is the first step of its epoch.
        by: Relative difference at that step.
        why: Why nothing could be compared; empty otherwise.
    """

    sameness: Sameness
    steps: int = 0
    epochs: int = 0
    part: str = ""
    at: int = 0
    at_epoch: int = 0
    begins_epoch: bool = False
    by: float = 0.0
    why: str = ""

    def __str__(self) -> str:
        match self.sameness:
            case Sameness.UNKNOWN:
                return f"{self.sameness}: {self.why}"
            case Sameness.DIFFERS:
                when = f" on, when epoch {self.at_epoch} begins" if self.begins_epoch else " on"
                if self.part == SAMPLES:
                    return f"it is fed other samples from step {self.at}{when}"
                return f"{self.part} differ by {self.by:.1g} from step {self.at}{when}"
            case _:
                return f"{self.sameness} over {self.steps} steps"


def is_equal(written: TrainingTrace, own: TrainingTrace) -> bool:
    """Return whether two runs computed the same numbers in the steps that both made."""
    pairs = list(zip(written.steps, own.steps, strict=False))
    return len(pairs) >= LEAST_STEPS and all(
        (a.loss, a.rate, a.weights, a.buffers) == (b.loss, b.rate, b.weights, b.buffers)
        for a, b in pairs
    )


def compare(
    written: TrainingTrace, shaken: Sequence[TrainingTrace], own: TrainingTrace
) -> Agreement:
    """Return whether a config trains what the program as written does.

    The first step is judged by what rounding does to a first step. Later ones are judged by the
    most that it does in any step, because it does much at once: where two values of a maximum, or a
    value and zero, change places. In which step that happens is chance.

    Args:
        written: The program as written.
        shaken: The same with shaken weights, at least once: how far rounding alone leads.
        own: The config.
    """
    count = min(len(trace.steps) for trace in (written, own, *shaken))
    base = written.steps[:count]
    if count < LEAST_STEPS:
        why = f"it made {count} steps in its short epochs, too few to tell"
        return Agreement(Sameness.UNKNOWN, why=why)
    if not any(step.weights or step.loss is not None for step in base):
        return Agreement(Sameness.UNKNOWN, why="the program shows neither losses nor weights")
    others = [trace.steps[:count] for trace in shaken]
    parts = [_deviations(base, other, part) for other in others for part in PARTS]
    noise = list(accumulate((max(step) for step in zip(*parts, strict=True)), max))
    steps = next((n for n, most in enumerate(noise) if most > MOST_NOISE), count)
    if steps < LEAST_STEPS:
        why = f"two runs as written already differ by {noise[steps]:.1g} at step {steps + 1}"
        return Agreement(Sameness.UNKNOWN, why=why)
    apart = list(_other_samples(base, others, own))
    base = base[:steps]
    later = max(noise[steps - 1], written.rounding)
    limits = [max(noise[0], written.rounding), *([later] * (steps - 1))]
    for part in PARTS:
        found = _deviations(base, own.steps[:steps], part)
        exceeding = (n for n, by in enumerate(found) if not by <= FACTOR * limits[n])
        apart += [(at, part, found[at]) for at in [next(exceeding, None)] if at is not None]
    if not apart:
        return Agreement(Sameness.ROUNDING, steps, _epochs(base))
    at, part, by = min(apart, key=lambda one: one[0])
    epoch, before = written.steps[at].epoch, written.steps[max(0, at - 1)].epoch
    return Agreement(
        Sameness.DIFFERS, steps, _epochs(base), part, at + 1, epoch, epoch != before, by
    )


def _other_samples(
    base: Sequence[TracedStep], shaken: Sequence[Sequence[TracedStep]], own: TrainingTrace
) -> Iterator[tuple[int, str, float]]:
    """Yield the first step that is fed other samples, where rounding alone changes none."""
    for at, (step, theirs) in enumerate(zip(base, own.steps, strict=False)):
        fed = {step.fed, *(other[at].fed for other in shaken)}
        if step.fed is None or theirs.fed is None or len(fed) > 1:
            return
        if theirs.fed != step.fed:
            yield at, SAMPLES, 0.0
            return


def same(written: TrainingTrace, own: TrainingTrace) -> Agreement:
    """Return the agreement of two runs that computed the same numbers."""
    steps = min(len(written.steps), len(own.steps))
    return Agreement(Sameness.BITS, steps, _epochs(written.steps[:steps]))


def loss_gap(written: TrainingTrace, own: TrainingTrace) -> Interval | None:
    """Return by how much the loss of a config is larger at equal samples, relative, with 95 %.

    The steps after the first ones are taken in blocks, whose differences are the sample of a
    Student's t interval.

    Args:
        written: The program as written.
        own: The config, whose steps have the same samples.

    Returns:
        None if there are too few steps with losses.
    """
    pairs = [
        (a.loss, b.loss)
        for a, b in zip(written.steps, own.steps, strict=False)
        if a.loss is not None and b.loss is not None
    ]
    size = len(pairs) // (BLOCKS + 1)
    if size < 1:
        return None
    pairs = pairs[len(pairs) - BLOCKS * size :]
    least = max(LEAST_LOSS * abs(fmean(a for a, _ in pairs)), TINY)
    blocks = []
    for number in range(BLOCKS):
        ours, theirs = zip(*pairs[number * size : (number + 1) * size], strict=True)
        blocks.append((fmean(theirs) - fmean(ours)) / max(abs(fmean(ours)), least))
    centre = fmean(blocks)
    half = student_t(0.05, BLOCKS - 1) * stdev(blocks) / math.sqrt(BLOCKS)
    return Interval(centre, centre - half, centre + half)


SAMPLES = "samples"
PARTS = ("losses", "learning rates", "weights", "buffers")


def _deviations(base: Sequence[TracedStep], other: Sequence[TracedStep], part: str) -> list[float]:
    """Return by how much a part deviates in each step, relative to its typical size."""
    ours, theirs = list(_values(base, part)), list(_values(other, part))
    if part == "losses":
        sizes = [abs(v) for values in ours for v in values if math.isfinite(v)]
        usual = median(sizes or [0.0])
        typical = [max([usual, *filter(math.isfinite, map(abs, values))]) for values in ours]
    else:
        typical = [median([abs(v) for v in values] or [0.0]) for values in ours]
    return [_apart(a, b, max(size, TINY)) for a, b, size in zip(ours, theirs, typical, strict=True)]


def _values(steps: Sequence[TracedStep], part: str) -> Iterator[tuple[float, ...]]:
    for step in steps:
        match part:
            case "losses":
                yield () if step.loss is None else (step.loss,)
            case "learning rates":
                yield () if step.rate is None else (step.rate,)
            case "weights":
                yield step.weights
            case _:
                yield step.buffers


def _apart(ours: Sequence[float], theirs: Sequence[float], size: float) -> float:
    """Return the median difference of values, relative to *size*.

    The median, because single weights may go anywhere: the bias before a BatchNorm has no gradient
    but rounding errors, which Adam turns into whole steps. 0.0 where one side has no such values.
    """
    if len(ours) != len(theirs) or not ours:
        return 0.0
    if all(math.isnan(a) and math.isnan(b) for a, b in zip(ours, theirs, strict=True)):
        return 0.0
    apart = median(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    return apart / size if math.isfinite(apart) else math.inf


def _epochs(steps: Sequence[TracedStep]) -> int:
    return len({step.epoch for step in steps})
