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
from statistics import median

# A config rounds in each sum of each step, a shaken run only moves its weights once. Seen on five
# programs with 4-7 configs each: up to twice the deviation of the shaken run.
FACTOR = 20.0
MOST_NOISE = 1e-3  # deviation of the shaken run, beyond which nothing can be told
# The same, up to which steps count as the same: they differ by half a percent at most. Later ones
# only show what is wrong. (At 1e-3, a loss that was 1.5 % larger from a step on was not noticed.)
CLEAR_NOISE = 2.5e-4
LEAST_STEPS = 5  # that must be comparable
EXACT = 1e-6  # relative difference of learning rates that are computed in another way
TINY = 1e-30
LAST_LOSSES = 5  # whose mean says whether a run is hopeless
ROUNDED = "rounding"
SAMPLES, RATES, GRADIENTS, BUFFERS = "samples", "learning rates", "gradients", "buffers"
MOST_BUFFERS = "all but a few of the buffers"  # judged by their larger deviations
FEW = 0.1  # of the values, whose deviations are left out there
SAVED, UNSAVED = "checkpoints", "missing checkpoints"
VALUES = "values of checkpoints"
PARTS = ("losses", "weights", BUFFERS)
STEPS_APART = 2  # at which two runs may first show one difference, which grows out of their noise


@dataclass(frozen=True)
class TracedStep:
    """One optimizer step, as it ended.

    Attributes:
        loss: Mean of the losses that made its gradients; None if none was seen.
        rates: The learning rates of the optimizer's groups.
        epoch: Number of the pass over the training data, from 1; 0 without a loader.
        batches: Number of batches that the program had taken by then.
        weights: Some of the weights after the step, always the same ones.
        buffers: Some of the model's buffers, such as BatchNorm's running means.
        gradient: Norm of the gradients of these weights in the step; None if they had none.
    """

    loss: float | None
    rates: tuple[float, ...]
    epoch: int
    batches: int = 0
    weights: tuple[float, ...] = ()
    buffers: tuple[float, ...] = ()
    gradient: float | None = None


@dataclass(frozen=True)
class TrainingTrace:
    """The first steps of one run.

    Attributes:
        rounding: By how much a loss rounds, relative.
        start: The weights before the first step.
        batches: A checksum of each batch that the program took to train on, in order.
        shaken: How many tensors were moved before the first step.
        broken: Why recording ended early; empty if it did not.
        saved: What the program saved with ``torch.save``, in order: a checksum of each object's
            keys, of the kinds of its objects, and of the sizes and types of its tensors.
        values: Of the first of these, the steps made by then, and some values of each entry.
    """

    steps: tuple[TracedStep, ...]
    rounding: float
    start: tuple[float, ...] = ()
    batches: tuple[int, ...] = ()
    shaken: int = 0
    broken: str = ""
    saved: tuple[int, ...] = ()
    values: tuple[tuple[int, tuple[tuple[float, ...], ...]], ...] = ()


NOT_SHAKEN = "its weights cannot be found"
NO_TIME = "there was no time; a longer --budget leaves some"


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
        epochs: How many short epochs these took.
        part: What differs first: ``samples``, ``losses``, ``gradients``, ``weights``, ``buffers``,
            ``learning rates`` or, after training, ``checkpoints``, ``missing checkpoints`` or
            ``values of checkpoints``; ``rounding`` alone, where even that must be the same.
        at: The step at which it does, from 1.
        begins_epoch: Whether it is the first step of its epoch.
        by: Relative difference at that step.
        why: Why nothing could be compared; empty otherwise.
        is_unrepeated: Whether there was no second run that could show the difference again.
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
    is_unrepeated: bool = False

    def is_like(self, other: Agreement) -> bool:
        """Return whether two comparisons found the same, differences at about the same step."""
        is_one = (self.sameness, self.part) == (other.sameness, other.part)
        return is_one and abs(self.at - other.at) <= STEPS_APART

    def __str__(self) -> str:
        match self.sameness:
            case Sameness.UNKNOWN:
                return f"{self.sameness}: {self.why}"
            case Sameness.DIFFERS:
                once = " (seen in one run; there was no second one)"
                return f"{self._difference}{once if self.is_unrepeated else ''}"
            case _:
                return f"{self.sameness} over {self.steps} steps"

    @property
    def _difference(self) -> str:
        when = f" on, when epoch {self.at_epoch} begins" if self.begins_epoch else " on"
        match self.part:
            case "checkpoints":
                return "it saves checkpoints of another form: other keys, sizes or types"
            case "missing checkpoints":
                return "it saves no checkpoint where the program as written saves some"
            case "values of checkpoints":
                return "it saves checkpoints with other values"
            case "rounding":
                return "it rounds otherwise"
            case "samples":
                return f"it is fed other samples from step {self.at}{when}"
            case _:
                return f"{self.part} differ by {self.by:.1g} from step {self.at}{when}"


def same(written: TrainingTrace, own: TrainingTrace) -> Agreement | None:
    """Return how two runs agree whose numbers are equal in the steps that both made; else None."""
    pairs = list(zip(written.steps, own.steps, strict=False))
    is_equal = (
        not _too_little(written, [own])
        and not _saves_otherwise(written, [], own)
        and all(ours == theirs for ours, theirs in zip(written.values, own.values, strict=False))
        and all(
            (a.loss, a.rates, a.weights, a.buffers, a.gradient)
            == (b.loss, b.rates, b.weights, b.buffers, b.gradient)
            for a, b in pairs
        )
    )
    if not is_equal:
        return None
    return Agreement(Sameness.BITS, len(pairs), _epochs(written.steps[: len(pairs)]))


def compare(
    written: TrainingTrace,
    shaken: Sequence[TrainingTrace],
    own: TrainingTrace,
    *,
    same_batches: bool = True,
) -> Agreement:
    """Return whether a config trains what the program as written does.

    The first step is judged by what rounding does to a first step. Later ones are judged by the
    most that it does in any step, because it does much at once: where two values of a maximum, or a
    value and zero, change places. In which step that happens is chance. Steps in which rounding may
    hide more than half a percent are judged apart, and do not count as the same. Learning rates and
    samples do not round; they are judged on their own.
    """
    if why := _too_little(written, [own, *shaken]):
        return Agreement(Sameness.UNKNOWN, why=why)
    count = min(len(trace.steps) for trace in (written, own, *shaken))
    noises = zip(*(_noise(part, written, shaken) for part in PARTS), strict=True)
    # A config with fewer steps, of more samples each, is judged in these alone
    noise = list(accumulate(map(max, noises), max))[:count]
    steps, clear = (
        next((n for n, by in enumerate(noise) if by > most), count)
        for most in (MOST_NOISE, CLEAR_NOISE)
    )
    drawn = _step_of_chance(written, shaken) if same_batches else count
    unclear = _unclear(written, shaken, noise, clear, drawn)
    apart = list(_other_samples(written, shaken, own)) if same_batches else []
    apart += _beyond(
        RATES, written, own, [EXACT + FACTOR * n for n in _noise(RATES, written, shaken)]
    )
    if steps >= LEAST_STEPS and unclear != NOT_SHAKEN:
        apart += _beyond_rounding(written, shaken, own, noise[:steps], clear)
    if apart:
        at, part, by = min(apart, key=lambda one: one[0])
        epoch, before = written.steps[at].epoch, written.steps[max(0, at - 1)].epoch
        over = _epochs(written.steps[:steps])
        return Agreement(Sameness.DIFFERS, steps, over, part, at + 1, epoch, epoch != before, by)
    if unclear:
        return Agreement(Sameness.UNKNOWN, why=unclear)
    over = _epochs(written.steps[:clear])
    if part := _saves_otherwise(written, shaken, own):
        return Agreement(Sameness.DIFFERS, clear, over, part)
    return Agreement(Sameness.ROUNDING, clear, over)


def _unclear(
    written: TrainingTrace,
    shaken: Sequence[TrainingTrace],
    noise: Sequence[float],
    clear: int,
    drawn: int,
) -> str:
    """Return why nothing can be said to be the same; empty if something can."""
    if not any(trace.shaken for trace in shaken):
        return NOT_SHAKEN
    if clear < LEAST_STEPS:
        return f"rounded otherwise, it differs by {noise[clear]:.1g} at step {clear + 1}"
    # Workers that stay show what they do to the samples when the second epoch begins. Where a model
    # makes the samples, they differ by rounding alone, and the losses tell.
    told = _epochs(written.steps[: max(drawn, clear)])
    if told < min(2, _epochs(written.steps[: len(noise)])):
        return f"two runs as written are fed other samples at step {drawn + 1}"
    return ""


def _beyond_rounding(
    written: TrainingTrace,
    shaken: Sequence[TrainingTrace],
    own: TrainingTrace,
    noise: Sequence[float],
    clear: int,
) -> Iterator[tuple[int, str, float]]:
    steps = len(noise)
    first, later = (max(n, written.rounding) for n in (noise[0], noise[-1]))
    # Where the noise exceeds what is clear, it has jumped there; in the config perhaps sooner
    near = later if clear >= steps else max(CLEAR_NOISE, written.rounding)
    limits = [first, *([near] * (clear - 1)), *([later] * (steps - max(1, clear)))]
    for part in PARTS:
        yield from _beyond(part, written, own, [FACTOR * limit for limit in limits])
    # A part of the layers may normalise otherwise, which the median does not show
    few = list(accumulate(_noise(MOST_BUFFERS, written, shaken)[:steps], max))
    most = [few[0], *([few[-1]] * (steps - 1))]
    above = [FACTOR * max(pair) for pair in zip(limits, most, strict=True)]
    yield from _beyond(MOST_BUFFERS, written, own, above)
    # Gradients round more than what they lead to, so they are judged by their own
    rounded = list(accumulate(_noise(GRADIENTS, written, shaken), max))
    soon = [rounded[0], *(rounded[min(n + STEPS_APART, len(rounded) - 1)] for n in range(1, steps))]
    yield from _beyond(GRADIENTS, written, own, [FACTOR * max(n, first) for n in soon])


def _saves_otherwise(
    written: TrainingTrace, shaken: Sequence[TrainingTrace], own: TrainingTrace
) -> str:
    # A longer run may save more, such as a longer history. One checkpoint may be missing, because a
    # run may end while a thread writes it.
    known = set(written.saved).union(*(trace.saved for trace in shaken))
    if not set(own.saved[: len(written.saved)]) <= known:
        return SAVED
    if len(written.saved) > 1 and not own.saved and len(own.steps) >= len(written.steps):
        return UNSAVED
    return VALUES if shaken and _values_differ(written, shaken, own) else ""


def _values_differ(
    written: TrainingTrace, shaken: Sequence[TrainingTrace], own: TrainingTrace
) -> bool:
    # As those of an average of the weights that was taken at every half step. What was saved after
    # the same step is compared. Where rounding alone moves values far, nothing is told of them.
    theirs, others = dict(own.values), [dict(trace.values) for trace in shaken]
    for step, ours in written.values:
        known = [other[step] for other in others if step in other]
        if step not in theirs or not known:
            continue
        noise = max(by for other in known for by in _entries_apart(ours, other))
        most = FACTOR * max(noise, written.rounding)
        if noise <= MOST_NOISE and max(_entries_apart(ours, theirs[step])) > most:
            return True
    return False


def _entries_apart(
    ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]
) -> list[float]:
    pairs = zip(ours, theirs, strict=False)
    return [0.0, *(_apart(a, b, max(_median(a), TINY)) for a, b in pairs)]


def _too_little(written: TrainingTrace, others: Sequence[TrainingTrace]) -> str:
    traces = [written, *others]
    if broken := next((trace.broken for trace in traces if trace.broken), ""):
        return f"its steps cannot be recorded ({broken})"
    for trace in traces:
        shown = sum(step.loss is not None or bool(step.weights) for step in trace.steps)
        if shown <= len(trace.steps) // 2:
            return "its losses and weights cannot be seen"
    count, planned = min(len(t.steps) for t in traces), len(written.steps)
    if count < LEAST_STEPS:
        return f"it made {count} steps in its short epochs, too few to tell"
    return f"it made {count} steps of {planned}" if 2 * count < planned else ""


def _noise(part: str, written: TrainingTrace, shaken: Sequence[TrainingTrace]) -> list[float]:
    return [
        max(step) for step in zip(*(_deviations(written, s, part) for s in shaken), strict=False)
    ]


def _beyond(
    part: str, written: TrainingTrace, own: TrainingTrace, limits: Sequence[float]
) -> list[tuple[int, str, float]]:
    found = zip(_deviations(written, own, part), limits, strict=False)
    named = BUFFERS if part == MOST_BUFFERS else part
    exceeding = ((at, named, by) for at, (by, limit) in enumerate(found) if not by <= limit)
    return [one for one in [next(exceeding, None)] if one is not None]


def _step_of_chance(written: TrainingTrace, shaken: Sequence[TrainingTrace]) -> int:
    """Return the first step in which runs as written differ in their samples; else their number."""
    pairs = (zip(written.batches, trace.batches, strict=False) for trace in shaken)
    differing = [next((n for n, (a, b) in enumerate(one) if a != b), None) for one in pairs]
    batch = min((n for n in differing if n is not None), default=len(written.batches))
    steps = enumerate(written.steps)
    return next((at for at, step in steps if step.batches > batch), len(written.steps))


def _other_samples(
    written: TrainingTrace, shaken: Sequence[TrainingTrace], own: TrainingTrace
) -> Iterator[tuple[int, str, float]]:
    """Yield the first step that is fed other samples, where chance alone changes none."""
    for number, (batch, theirs) in enumerate(zip(written.batches, own.batches, strict=False)):
        known = {trace.batches[number] for trace in shaken if number < len(trace.batches)}
        if known - {batch}:
            return
        if theirs != batch:
            steps = enumerate(written.steps)
            at = next((at for at, step in steps if step.batches > number), None)
            if at is not None and at < len(own.steps):
                yield at, SAMPLES, 0.0
            return


def _deviations(written: TrainingTrace, other: TrainingTrace, part: str) -> list[float]:
    if part == RATES:
        return _rate_deviations(written, other)
    ours, theirs = _values(written, written, part), _values(other, written, part)
    sizes = _sizes(written, part)
    share = 1 - FEW if part == MOST_BUFFERS else 0.5
    triples = zip(ours, theirs, sizes, strict=False)
    return [_apart(a, b, max(size, TINY), share) for a, b, size in triples]


def _rate_deviations(written: TrainingTrace, other: TrainingTrace) -> list[float]:
    # Relative to the largest rate of that group: a schedule may end next to zero.
    sizes: dict[int, float] = {}
    for step in written.steps:
        for group, rate in enumerate(step.rates):
            sizes[group] = max(sizes.get(group, TINY), abs(rate))
    found = []
    for ours, theirs in zip(written.steps, other.steps, strict=False):
        pairs = list(enumerate(zip(ours.rates, theirs.rates, strict=False)))
        apart = [0.0 if a == b else abs(a - b) / sizes[group] for group, (a, b) in pairs]
        found.append(max(apart, default=0.0))
    return found


def _sizes(written: TrainingTrace, part: str) -> list[float]:
    if part == "weights":
        return [_median(step.weights) for step in written.steps]
    values = _values(written, written, part)
    if part not in {"losses", GRADIENTS}:
        return [_median(own) for own in values]
    usual = _median([loss for own in values for loss in own])
    return [max([usual, *(abs(v) for v in own if math.isfinite(v))]) for own in values]


def _median(values: Sequence[float]) -> float:
    return median([abs(v) for v in values if math.isfinite(v)] or [0.0])


def _values(trace: TrainingTrace, written: TrainingTrace, part: str) -> list[tuple[float, ...]]:
    """Return the values of a part after each step.

    Of weights, by how much they have moved: a shaken run starts elsewhere. Of buffers, those that
    training changes in the program as written.
    """
    match part:
        case "losses":
            return [() if step.loss is None else (step.loss,) for step in trace.steps]
        case "gradients":
            return [() if step.gradient is None else (step.gradient,) for step in trace.steps]
        case "weights":
            return [
                tuple(w - start for w, start in zip(step.weights, trace.start, strict=False))
                for step in trace.steps
            ]
        case "buffers" | "all but a few of the buffers":
            first = written.steps[0].buffers
            changing = [
                n
                for n, value in enumerate(first)
                if any(step.buffers[n : n + 1] != (value,) for step in written.steps)
            ]
            return [
                tuple(step.buffers[n] for n in changing if n < len(step.buffers))
                for step in trace.steps
            ]
        case _:
            raise ValueError(f"no part of a training is called {part!r}")


def _apart(
    ours: Sequence[float], theirs: Sequence[float], size: float, share: float = 0.5
) -> float:
    """Return the difference that a share of the values do not exceed, relative to *size*.

    Mostly the median, because single weights may go anywhere: the bias before a BatchNorm has no
    gradient but rounding errors, which Adam turns into whole steps. 0.0 where one side has no such
    values.
    """
    if len(ours) != len(theirs) or not ours:
        return 0.0
    apart = [
        0.0 if a == b or (math.isnan(a) and math.isnan(b)) else abs(a - b)
        for a, b in zip(ours, theirs, strict=True)
    ]
    ordered = sorted(by / size if math.isfinite(by) else math.inf for by in apart)
    return median(ordered) if share == 0.5 else ordered[math.ceil(share * len(ordered)) - 1]


def _epochs(steps: Sequence[TracedStep]) -> int:
    return len({step.epoch for step in steps})
